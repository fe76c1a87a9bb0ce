"""The command line of ``scripts/chaos``."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.chaos.audit import Findings
from benchmarks.chaos.campaign import Campaign, Result, play
from benchmarks.chaos.plan import Plan
from benchmarks.chaos.play import Played
from trainswitch_controller.cli.options import JsonOption
from trainswitch_controller.cli.output import Report, complain, console
from trainswitch_controller.cli.signals import ending_on_sigterm

_LINE_EVERY = 20


def run(
    rounds: Annotated[int, typer.Option(min=1, help="How many rounds.")] = 200,
    seed: Annotated[int, typer.Option(help="Of everything that happens.")] = 1,
    first: Annotated[int, typer.Option(min=0, help="Number of the first round, to play some again.")] = 0,
    stack_every: Annotated[
        int,
        typer.Option(min=0, help="Every so many rounds have Prometheus and Alertmanager in them; 0: none."),
    ] = 5,
    as_json: JsonOption = False,
) -> None:
    """Kill, stop and break everything around interventions; count what was lost, doubled or only claimed.

    Bar: 0 commands lost, 0 applied twice, 0 acknowledged but not applied.
    """
    report = Report(as_json=as_json)
    home = Path(tempfile.mkdtemp(prefix="trainswitch-chaos-"))
    campaign = Campaign(rounds=rounds, seed=seed, first=first, stack_every=stack_every)
    clean = False
    try:
        with ending_on_sigterm():
            result = _watch(home, campaign, report)
        clean = result.findings.clean
    finally:
        if clean:
            shutil.rmtree(home, ignore_errors=True)
        else:
            complain(f"logs, journal and effect logs are left in {home}.")
    _tell(result, report)
    report.result(_document(result, campaign))
    if not clean:
        raise typer.Exit(1)


def _watch(home: Path, campaign: Campaign, report: Report) -> Result:
    played_rounds = 0
    with console(stderr=True).status("starting") as line:

        def on_round(plan: Plan, played: Played, found: Findings) -> None:
            nonlocal played_rounds
            played_rounds += 1
            line.update(f"{played_rounds} of {campaign.rounds} rounds")
            if played_rounds % _LINE_EVERY == 0:
                report.say(f"{played_rounds} rounds played, the last in {played.evidence.seconds:.1f} s")
            for name, sentences in _kinds(found).items():
                for sentence in sentences:
                    report.say(f"round {plan.number}: {name}: {sentence}")

        return play(home, campaign, on_round)


def _kinds(found: Findings) -> dict[str, list[str]]:
    return {
        "lost": found.lost,
        "applied twice": found.doubled,
        "acknowledged but not applied": found.unapplied,
        "else": found.broken,
    }


def _tell(result: Result, report: Report) -> None:
    found = result.findings
    report.table(("what was done", "times"), sorted(result.faults.items()))
    report.table(("allowed, and counted apart", "times"), sorted(found.notes.items()))
    report.table(("commands ended", "times"), sorted(result.commands.items()))
    for missing in result.missing_faults:
        report.say(f"not tried: {missing}; it needs root and the right to mount.")
    report.say(
        f"{result.rounds} rounds ({result.stack_rounds} with Prometheus and Alertmanager) in "
        f"{result.seconds:.0f} s; {found.applied} interventions seen in the effect log."
    )
    report.say(
        f"{len(found.lost)} lost, {len(found.doubled)} applied twice, "
        f"{len(found.unapplied)} acknowledged but not applied; {len(found.broken)} other findings."
    )


def _document(result: Result, campaign: Campaign) -> dict[str, object]:
    found = result.findings
    return {
        "ok": found.clean,
        "rounds": result.rounds,
        "stack_rounds": result.stack_rounds,
        "seed": campaign.seed,
        "first": campaign.first,
        "seconds": round(result.seconds, 1),
        "lost": found.lost,
        "applied_twice": found.doubled,
        "acknowledged_but_not_applied": found.unapplied,
        "else": found.broken,
        "applied": found.applied,
        "commands": dict(result.commands),
        "faults": dict(result.faults),
        "notes": dict(found.notes),
        "not_tried": list(result.missing_faults),
    }
