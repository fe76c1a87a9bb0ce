"""Judges a round: what was lost, carried out twice, or answered but not done. A pure function."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter

from benchmarks.chaos.evidence import Evidence
from benchmarks.chaos.journal import FINAL, JournaledCommand
from benchmarks.chaos.lives import OTHER, Life, lives_of

TTL_S = 600.0
"""``command_ttl`` of policy.yml: only a clock that steps further can make a command expire here."""
_SAVED = re.compile(r"saved step (\d+)")
_ROLLED_BACK = re.compile(r"rolled back from step (\d+)")


@dataclasses.dataclass
class Findings:
    """What was found; the first three are the zeros."""

    lost: list[str] = dataclasses.field(default_factory=list)
    """Acknowledged and not in the journal, or in it and never done although nothing explains that."""
    doubled: list[str] = dataclasses.field(default_factory=list)
    """Carried out twice, as far as that outlives the process that did it."""
    unapplied: list[str] = dataclasses.field(default_factory=list)
    """Answered ``applied`` without the effect."""
    broken: list[str] = dataclasses.field(default_factory=list)
    """What else must not happen: a process that ends by itself, an answer that no client can use."""
    notes: Counter[str] = dataclasses.field(default_factory=Counter)
    """What is allowed and worth knowing, counted."""
    applied: int = 0
    """Commands that were carried out, answered, and seen in the effect log."""

    def add(self, other: Findings, where: str) -> None:
        """Take in what was found in round `where`."""
        for name in ("lost", "doubled", "unapplied", "broken"):
            getattr(self, name).extend(f"{where}: {sentence}" for sentence in getattr(other, name))
        self.notes += other.notes
        self.applied += other.applied

    @property
    def clean(self) -> bool:
        """Whether nothing was found."""
        return not (self.lost or self.doubled or self.unapplied or self.broken)


def audit(evidence: Evidence) -> Findings:
    """Return what is wrong with a round."""
    return _Audit(evidence).findings


class _Audit:
    def __init__(self, evidence: Evidence) -> None:
        self.evidence = evidence
        self.findings = Findings()
        self.lives = lives_of(evidence.sights)
        self.findings.broken.extend(evidence.deaths)
        if not evidence.calm:
            self.findings.broken.append("not everything had settled in time.")
        self._deliveries()
        self._troubles()
        for command in evidence.commands:
            self._end_of(command)
        self._once_each()
        self._rates()
        self._again_after_the_answer()
        self._too_often()

    # ── lost ──────────────────────────────────────────────────────────────────────────────────────────

    def _deliveries(self) -> None:
        """What was acknowledged is in the journal."""
        for attempt in self.evidence.attempts:
            if attempt.code == 200 and attempt.mark not in self.evidence.marks:
                self.findings.lost.append(
                    f"delivery {attempt.mark} was answered with 200 and is not journaled."
                )
            if attempt.code not in {None, 200, 503}:
                self.findings.broken.append(f"a webhook was answered with {attempt.code}.")
            self.findings.notes[f"webhooks answered {attempt.code or 'by nobody'}"] += 1
        known = {command.id for command in self.evidence.commands}
        for order in self.evidence.orders:
            if order not in known:
                self.findings.lost.append(f"order {order} was answered with 202 and is not journaled.")

    def _troubles(self) -> None:
        """What was surely heard of has a command at least; `_end_of` judges what became of that."""
        answered = {command.alertname for command in self.evidence.commands if command.alertname}
        for name in sorted({one.alertname for one in self.evidence.episodes if one.must_act} - answered):
            outcomes = self.evidence.outcomes.get(name, [])
            if "held" in outcomes and "resolved" in outcomes:
                self.findings.notes["alerts that began and ended while the run was paused"] += 1
            else:
                self.findings.lost.append(f"{name} was acknowledged and never acted; decided: {outcomes}.")
        for name in self.evidence.unanswered:
            self.findings.lost.append(f"{name} lasted and was not answered in time.")

    def _end_of(self, command: JournaledCommand) -> None:
        if command.state == "applied":
            self._effect_of(command)
        elif command.state not in FINAL:
            self.findings.lost.append(f"{command.name} is {command.state} for ever.")
        elif command.state == "expired" and self.evidence.clock_step >= TTL_S:
            self.findings.notes["expired because a clock stepped further than command_ttl"] += 1
        elif command.state == "superseded" and command.action == "pause" and "resume" in command.detail:
            self.findings.notes["pauses superseded by their own resume"] += 1
        elif command.state in {"failed", "refused"} and command.action == "rollback":
            self.findings.notes["rollbacks without a checkpoint to go back to"] += 1
        else:
            self.findings.lost.append(f"{command.name} ended {command.state}: {command.detail}")

    # ── answered but not applied ──────────────────────────────────────────────────────────────────────

    def _effect_of(self, command: JournaledCommand) -> None:
        shown = [self._shows(command, life) for life in self.lives]
        if any(shown):
            self.findings.applied += 1
        elif None in shown:
            self.findings.notes["answered by a trainer that was killed before its next step"] += 1
        else:
            self.findings.unapplied.append(
                f"{command.name} was answered 'applied' at step {command.step} ({command.detail}), and no "
                "trainer shows the effect."
            )

    def _shows(self, command: JournaledCommand, life: Life) -> bool | None:
        """Whether `life` shows the effect where the answer says; None: it may have died too early."""
        assert command.step is not None
        if command.action == "reduce_lr":
            return life.rises(_prime(command), command.step)
        if command.action == "rollback":
            return _number(_ROLLED_BACK, command) in life.loads
        if command.action == "snapshot":
            step = _number(_SAVED, command)
            rotated = self.evidence.plan.restores  # periodic saves push it out
            return step in life.captures and (rotated or step in self.evidence.checkpoints)
        return command.action != "pause" or self._stood(command, life)

    def _stood(self, pause: JournaledCommand, life: Life) -> bool:
        """Whether the trainer made no step between the pause and its end."""
        assert pause.seq is not None
        for later in self.evidence.commands:
            if later.seq is None or later.seq <= pause.seq or later.state != "applied":
                continue
            if later.action == "rollback":
                return True  # the step at which it stands is another one then
            if later.action == "resume" and later.step == pause.step:
                return True
        return bool(life.moved) and life.moved[-1].step == pause.step

    # ── applied twice ─────────────────────────────────────────────────────────────────────────────────

    def _once_each(self) -> None:
        """An episode has one command for a rung."""
        rungs = Counter(
            (one.alertname, one.starts_at, one.rung) for one in self.evidence.commands if one.rung is not None
        )
        for (name, _, rung), count in rungs.items():
            if count > 1:
                self.findings.doubled.append(f"one episode of {name} has {count} commands for rung {rung}.")

    def _rates(self) -> None:
        """No factor is in effect more often than it was commanded, whatever died and was restored."""
        applied = Counter(
            _prime(one)
            for one in self.evidence.commands
            if one.action == "reduce_lr" and one.state == "applied"
        )
        reported: set[int] = set()
        for life in self.lives:
            for at, sight in enumerate(life.moved):
                for prime, count in life.exponents(at).items():
                    allowed = 0 if prime == OTHER else max(1, applied[prime])
                    if count > allowed and prime not in reported:
                        reported.add(prime)
                        self.findings.doubled.append(
                            f"trainer {life.number} trains with a rate of {sight.value:.6g} at step "
                            f"{sight.step}: the factor 1/{prime} is in it {count} times."
                        )

    def _again_after_the_answer(self) -> None:
        """Nothing is carried out again once it was answered; before that, only what died with a process."""
        for command in self.evidence.commands:
            done = [life.number for life in self.lives if self._did(command, life)]
            if len(done) > 1:
                self.findings.notes["carried out again because the first time died unanswered"] += 1
            pid = self.evidence.answered_by.get(command.id)
            answering = next((life for life in self.lives if life.pid == pid), None)
            if command.state != "applied" or answering is None or done[-1:] <= [answering.number]:
                continue
            if any(fault.kind == "away" for fault in self.evidence.plan.faults):
                self.findings.notes["carried out again because the folder with its answer was gone"] += 1
            else:
                self.findings.doubled.append(
                    f"{command.name} was answered by trainer {answering.number}, and carried out by {done}."
                )

    def _did(self, command: JournaledCommand, life: Life) -> bool:
        """Whether `life` itself did what only `command` can have told it."""
        if command.action == "reduce_lr":
            return life.reduced(_prime(command))
        if sum(one.action == command.action for one in self.evidence.commands) > 1:
            return False
        if command.action == "rollback":
            return bool(life.loads)
        return command.action == "snapshot" and not self.evidence.plan.restores and life.saves > 0

    def _too_often(self) -> None:
        """No trainer saved or rolled back more often than it was told to."""
        for action, counts in (
            ("rollback", [len(life.loads) for life in self.lives]),
            ("snapshot", [] if self.evidence.plan.restores else [life.saves for life in self.lives]),
        ):
            commanded = sum(one.action == action for one in self.evidence.commands)
            if any(count > commanded for count in counts):
                self.findings.doubled.append(
                    f"{action} was commanded {commanded} times, and the trainers did it {counts} times."
                )


def _number(pattern: re.Pattern[str], command: JournaledCommand) -> int:
    """Return the step that the answer names; -1 where it names none, which matches nothing."""
    found = pattern.search(command.detail)
    return int(found[1]) if found else -1


def _prime(command: JournaledCommand) -> int:
    return round(1.0 / float(command.params["factor"]))
