"""Deliveries, decisions and commands over time: a real journal, real files, a clock that the test moves."""

from __future__ import annotations

import errno
import json
import logging
import os
import subprocess
from collections.abc import Callable
from typing import Any

import pytest

from trainswitch.intervention.control_file import commands_path, status_path
from trainswitch_controller import views
from trainswitch_controller.errors import Conflict
from trainswitch_controller.held import failure_reason
from trainswitch_controller.service import Controller, Order, Rejection

MakeController = Callable[..., Controller]
MakeLoop = Callable[..., Any]

RESUMING = """
version: 1
cooldown: 0s
alerts:
  TrainNonFinite:
    ladder: [{action: pause, resume_when_resolved: true}]
"""


def test_returning_trouble_takes_the_next_rung(home: Any, make_loop: MakeLoop) -> None:
    """A new episode after an applied rung takes the next one; the one after the last is a pause."""
    trainer = home.trainer()
    loop = make_loop()
    for _ in range(4):
        assert loop.fire("TrainLossUnstable") == "acted"
        loop.tick()
        trainer.poll()
        loop.tick(10.0)
    assert [action for action, _ in loop.states()] == ["reduce_lr", "rollback", "pause", "pause"]
    assert [command["seq"] for command in loop.commands()] == [1, 2, 3, 4]
    assert {state for _, state in loop.states()} == {"applied"}
    assert loop.metric("commands_total", action="pause", state="applied") == 2
    assert loop.metric("command_timestamp_seconds", run="demo", action="rollback") is not None


def test_a_rung_that_was_never_carried_out_is_taken_again(home: Any, make_loop: MakeLoop) -> None:
    """An expired command was no answer to the trouble, so its rung comes again; a refused one was."""
    trainer = home.trainer()
    loop = make_loop()
    trainer.answers = "expired"
    for expected in ("reduce_lr", "reduce_lr", "rollback"):
        loop.fire("TrainLossUnstable")
        loop.tick()
        assert trainer.commands()[-1]["action"] == expected
        trainer.poll()
        trainer.answers = "refused"
        loop.tick(10.0)
    assert [state for _, state in loop.states()] == ["expired", "refused", "refused"]


def test_lasting_trouble_is_decided_again_when_the_cooldown_ends(home: Any, make_loop: MakeLoop) -> None:
    """An episode that began within a cooldown acts at its end if it still fires, and only then."""
    home.write_policy((home.folder / "policy.yml").read_text().replace("cooldown: 0s", "cooldown: 60s"))
    trainer = home.trainer()
    loop = make_loop()
    assert loop.fire("TrainLossUnstable") == "acted"
    loop.tick()
    trainer.poll()
    loop.tick(10.0)
    lasting, brief = loop.clock.time, loop.clock.time + 1.0
    assert loop.fire("TrainLossUnstable", starts_at=lasting) == "cooldown"
    assert loop.fire("TrainLossUnstable", starts_at=brief, rank="1") == "cooldown"
    assert loop.fire("TrainLossUnstable", starts_at=brief, rank="1", status="resolved") == "resolved"
    loop.tick(49.0)
    assert len(loop.commands()) == 1
    loop.tick(1.0)
    assert [action for action, _ in loop.states()] == ["reduce_lr", "rollback"]
    assert loop.fire("TrainLossUnstable", starts_at=lasting) == "duplicate"
    loop.tick(1000.0)
    assert len(loop.commands()) == 2
    assert loop.metric("alerts_total", alertname="TrainLossUnstable", outcome="acted") == 2


def test_many_alerts_of_one_fault_cause_one_intervention(home: Any, make_loop: MakeLoop) -> None:
    """Eight ranks that report the same fault in the same second are one trouble."""
    home.trainer()
    loop = make_loop()
    began = loop.clock.time
    outcomes = [loop.fire("TrainLossUnstable", starts_at=began, rank=str(rank)) for rank in range(8)]
    assert outcomes == ["acted"] + ["duplicate"] * 7
    assert len(loop.commands()) == 1


def test_runs_do_not_share_cooldown_ladder_or_numbers(home: Any, make_loop: MakeLoop) -> None:
    """Trouble of one run says nothing about another."""
    trainers = [home.trainer("a"), home.trainer("b")]
    loop = make_loop()
    assert [loop.fire(run=run) for run in ("a", "b")] == ["acted", "acted"]
    loop.tick()
    assert [[command["seq"] for command in trainer.commands()] for trainer in trainers] == [[1], [1]]


def test_the_budgets_end_is_one_pause(home: Any, make_loop: MakeLoop) -> None:
    """After the budget's last intervention the run is paused once, and every further alert says why not."""
    home.write_policy(
        (home.folder / "policy.yml").read_text() + "budget: {per_run: {interventions: 1, window: 1h}}\n"
    )
    trainer = home.trainer()
    loop = make_loop()
    outcomes = []
    for _ in range(4):
        outcomes.append(loop.fire("TrainLossUnstable"))
        loop.tick()
        trainer.poll()
        loop.tick(10.0)
    assert outcomes == ["acted", "budget", "budget", "budget"]
    assert [action for action, _ in loop.states()] == ["reduce_lr", "pause"]
    loop.tick(3600.0)
    assert loop.fire("TrainLossUnstable") == "acted"


def test_approval_makes_a_command_due(home: Any, make_loop: MakeLoop) -> None:
    """A command that waits has no number; approved, it takes the next one and its full time to live."""
    home.write_policy("mode: approve\n" + (home.folder / "policy.yml").read_text())
    trainer = home.trainer()
    loop = make_loop()
    assert loop.fire("TrainLossUnstable") == "awaiting_approval"
    [command] = loop.commands()
    assert (command["state"], command["seq"]) == ("awaiting_approval", None)
    assert loop.fire("TrainLossUnstable", starts_at=loop.clock.time + 1.0) == "awaiting_approval"
    loop.controller.order("demo", Order(action="snapshot"))
    loop.tick(100.0)
    trainer.poll()
    approved = loop.controller.approve(command["id"])
    assert (approved.seq, approved.expires_at) == (2, loop.clock.time + 600.0)
    loop.tick()
    assert [one["id"] for one in trainer.commands()] == [command["id"]]
    with pytest.raises(Conflict, match="is written and does not await approval"):
        loop.controller.approve(command["id"])


def test_what_nobody_approves_expires(home: Any, make_loop: MakeLoop) -> None:
    """A proposal is good for one time to live; after it the same trouble may be proposed again."""
    home.write_policy("mode: approve\n" + (home.folder / "policy.yml").read_text())
    home.trainer()
    loop = make_loop()
    loop.fire()
    [command] = loop.commands()
    loop.clock.time += 600.0
    with pytest.raises(Conflict, match="is expired"):
        loop.controller.approve(command["id"])
    loop.tick()
    assert loop.states() == [("pause", "expired")]
    assert loop.fire() == "awaiting_approval"


def test_what_was_rejected_is_not_proposed_again(home: Any, make_loop: MakeLoop) -> None:
    """A rejected rung was never carried out: its episode is silent, and a new one proposes the same rung."""
    home.write_policy("mode: approve\n" + (home.folder / "policy.yml").read_text())
    trainer = home.trainer()
    loop = make_loop()
    began = loop.clock.time
    loop.fire("TrainLossUnstable", starts_at=began)
    [command] = loop.commands()
    rejected = loop.controller.reject(command["id"], Rejection(reason="a single spike"))
    assert (rejected.state, rejected.seq) == ("rejected", None)
    assert rejected.detail == "an operator rejected it: a single spike"
    with pytest.raises(Conflict, match="is rejected and does not await approval"):
        loop.controller.approve(command["id"])
    loop.tick(700.0)
    assert loop.fire("TrainLossUnstable", starts_at=began) == "duplicate"
    assert trainer.commands() == []
    assert loop.fire("TrainLossUnstable") == "awaiting_approval"
    assert [(one["action"], one["state"]) for one in loop.commands()] == [
        ("reduce_lr", "rejected"),
        ("reduce_lr", "awaiting_approval"),
    ]


def test_observe_only_notes(home: Any, make_loop: MakeLoop) -> None:
    """In mode observe the journal says what would have been done, and no command exists."""
    home.write_policy("mode: observe\n" + (home.folder / "policy.yml").read_text())
    home.trainer()
    loop = make_loop()
    assert loop.fire() == "observed"
    assert loop.commands() == []
    [episode] = loop.controller.journal.read(lambda session: views.episodes(session, "demo", 10))
    assert [(one["outcome"], one["action"], one["rung"]) for one in episode["decisions"]] == [
        ("observed", "pause", 1)
    ]


@pytest.mark.parametrize("resolved_first", [False, True])
def test_a_resolved_alert_ends_its_own_pause(resolved_first: bool, home: Any, make_loop: MakeLoop) -> None:
    """The resume is issued once, whether the alert resolves before or after the pause was answered."""
    home.write_policy(RESUMING)
    trainer = home.trainer()
    loop = make_loop()
    began = loop.clock.time
    loop.fire(starts_at=began)
    loop.tick()
    if resolved_first:
        loop.fire(starts_at=began, status="resolved")
    trainer.poll()
    loop.tick(1.0)
    loop.fire(starts_at=began, status="resolved")
    loop.fire(starts_at=began, status="resolved")
    loop.tick(1.0)
    assert loop.states() == [("pause", "applied"), ("resume", "written")]


@pytest.mark.parametrize("answer", ["refused", "applied"])
def test_a_resolved_alert_ends_nothing_else(answer: str, home: Any, make_loop: MakeLoop) -> None:
    """No resume follows a pause that was not applied, or one after which something else was commanded."""
    home.write_policy(RESUMING)
    trainer = home.trainer()
    trainer.answers = answer
    loop = make_loop()
    began = loop.clock.time
    loop.fire(starts_at=began)
    loop.tick()
    trainer.poll()
    loop.tick(1.0)
    if answer == "applied":
        loop.controller.order("demo", Order(action="snapshot"))
    loop.fire(starts_at=began, status="resolved")
    loop.tick(1.0)
    assert "resume" not in [action for action, _ in loop.states()]


def test_a_firing_that_arrives_after_its_resolution_does_not_act(home: Any, make_loop: MakeLoop) -> None:
    """Reordered deliveries: the episode is over, whatever arrives late."""
    home.trainer()
    loop = make_loop()
    began = loop.clock.time
    assert loop.fire(starts_at=began, status="resolved") == "resolved"
    assert loop.fire(starts_at=began) == "resolved"
    assert loop.commands() == []


def test_a_run_without_folder_keeps_its_command_pending(
    home: Any, make_loop: MakeLoop, caplog: pytest.LogCaptureFixture
) -> None:
    """The folder is the trainer's to make: until then the failure is counted at each look and logged once."""
    loop = make_loop()
    assert loop.fire() == "acted"
    with caplog.at_level(logging.INFO):
        for _ in range(3):
            loop.tick(1.0)
    assert loop.metric("write_failures_total", reason="missing_folder") == 3
    assert sum("cannot write" in record.message for record in caplog.records) == 1
    assert loop.states() == [("pause", "pending")]
    assert loop.controller.problems() == []
    assert list(home.control.iterdir()) == []
    trainer = home.trainer()
    loop.tick(1.0)
    assert len(trainer.commands()) == 1
    assert loop.states() == [("pause", "written")]


def test_an_unwritten_command_expires_with_the_reason(home: Any, make_loop: MakeLoop) -> None:
    """What could not be written within its time to live is ended, and says why."""
    loop = make_loop()
    loop.fire()
    loop.tick()
    loop.tick(600.0)
    [command] = loop.commands()
    assert command["state"] == "expired"
    assert "No such file" in command["detail"]
    assert command["finished_at"] == loop.clock.time


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a small tmpfs, which only root may; CI runs as root")
def test_a_full_disk_is_counted_and_tried_again(home: Any, make_loop: MakeLoop) -> None:
    """The kernel's own ENOSPC: the command stays pending, ready says so, and the next look mends it."""
    folder = home.control / "demo"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k,mode=0755", "tmpfs", folder], check=True)
    try:
        trainer = home.trainer()
        loop = make_loop()
        loop.fire()
        with pytest.raises(OSError, match="space"):
            (folder / "filler").write_bytes(b"x" * 1_000_000)
        loop.tick()
        assert loop.metric("write_failures_total", reason="no_space") == 1
        assert loop.states() == [("pause", "pending")]
        assert any("no_space" in problem for problem in loop.controller.problems())
        (folder / "filler").unlink()
        loop.tick(1.0)
        assert loop.states() == [("pause", "written")]
        assert len(trainer.commands()) == 1
        assert loop.controller.problems() == []
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


def test_a_place_that_cannot_be_written_is_named(home: Any, make_loop: MakeLoop) -> None:
    """Where commands.json itself is in the way, the failure is counted as other and nothing is lost."""
    home.trainer()
    commands_path(home.control, "demo").mkdir()
    loop = make_loop()
    loop.fire()
    loop.tick()
    assert loop.metric("write_failures_total", reason="other") == 1
    commands_path(home.control, "demo").rmdir()
    loop.tick()
    assert loop.states() == [("pause", "written")]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("ENOENT", "missing_folder"),
        ("ENOSPC", "no_space"),
        ("EDQUOT", "no_space"),
        ("EROFS", "read_only"),
        ("EACCES", "read_only"),
        ("EIO", "other"),
    ],
)
def test_the_operating_systems_errors_have_reasons(name: str, reason: str) -> None:
    """Every errno falls into one of the bounded label values."""
    assert failure_reason(OSError(getattr(errno, name), "x")) == reason
    assert failure_reason(None) == "other"


def test_a_written_command_waits_for_an_answer_once_as_long_again(home: Any, make_loop: MakeLoop) -> None:
    """After its expiry a written command is kept for the trainer's own answer for one more ttl."""
    trainer = home.trainer()
    loop = make_loop()
    loop.fire()
    loop.tick()
    loop.tick(1199.0)
    assert loop.states() == [("pause", "written")]
    assert len(trainer.commands()) == 1
    loop.tick(1.0)
    [command] = loop.commands()
    assert (command["state"], "not answered" in command["detail"]) == ("expired", True)
    assert trainer.commands() == []


def test_commands_are_written_in_order_and_only_while_unanswered(home: Any, make_loop: MakeLoop) -> None:
    """commands.json always holds exactly what the trainer has not answered, oldest first."""
    trainer = home.trainer()
    loop = make_loop()
    for action in ("snapshot", "pause", "resume"):
        loop.controller.order("demo", Order(action=action))
    loop.tick()
    assert [(one["seq"], one["action"]) for one in trainer.commands()] == [
        (1, "snapshot"),
        (2, "pause"),
        (3, "resume"),
    ]
    trainer.poll()
    loop.controller.order("demo", Order(action="stop"))
    loop.tick()
    assert [(one["seq"], one["action"]) for one in trainer.commands()] == [(4, "stop")]
    assert len(trainer.carried_out) == 3


def test_a_damaged_commands_file_is_replaced_and_counted(home: Any, make_loop: MakeLoop) -> None:
    """The controller is the only writer: what it did not write is reported and written again at once."""
    trainer = home.trainer()
    loop = make_loop()
    loop.fire()
    loop.tick()
    path = commands_path(home.control, "demo")
    for damage, reason in (("{", "torn"), ('{"schema": "else"}', "foreign")):
        path.write_text(damage)
        loop.tick()
        assert loop.metric("control_file_errors_total", file="commands", reason=reason) == 1
        assert len(trainer.commands()) == 1
    path.unlink()
    loop.tick()
    assert len(trainer.commands()) == 1


def test_a_damaged_status_file_is_reported_and_its_successor_read(home: Any, make_loop: MakeLoop) -> None:
    """A status file that cannot be used acknowledges nothing, is counted once, and stops nothing else."""
    trainer = home.trainer()
    loop = make_loop()
    loop.fire()
    loop.tick()
    status_path(home.control, "demo").write_text("{")
    loop.tick()
    loop.tick()
    assert loop.metric("control_file_errors_total", file="status", reason="torn") == 1
    assert loop.states() == [("pause", "written")]
    trainer.poll()
    loop.tick()
    assert loop.states() == [("pause", "applied")]


@pytest.mark.parametrize("field", ["step", "applied_seq", "updated_at"])
def test_a_status_file_with_absurd_numbers_is_foreign(field: str, home: Any, make_loop: MakeLoop) -> None:
    """Numbers that no journal could store are refused where they are read."""
    home.trainer()
    document = json.loads(status_path(home.control, "demo").read_text())
    document[field] = float("inf") if field == "updated_at" else 10**30
    status_path(home.control, "demo").write_text(json.dumps(document))
    loop = make_loop()
    assert loop.fire() == "acted"
    loop.tick()
    assert loop.metric("control_file_errors_total", file="status", reason="foreign") == 1
    assert loop.states() == [("pause", "written")]


def test_a_lost_journal_reuses_no_number(home: Any, make_loop: MakeLoop) -> None:
    """With a new journal, numbers and epoch go on after those that the run's files have seen."""
    trainer = home.trainer()
    loop = make_loop()
    for _ in range(3):
        loop.controller.order("demo", Order(action="snapshot"))
    loop.tick()
    trainer.poll()
    loop.tick()
    other = make_loop(journal_url=f"sqlite:///{home.folder / 'other.db'}")
    other.controller.order("demo", Order(action="pause"))
    other.tick()
    assert [one["seq"] for one in trainer.commands()] == [4]
    assert other.controller._dispatcher.epoch == 2


def test_a_lost_journal_keeps_the_commands_that_were_written(home: Any, make_loop: MakeLoop) -> None:
    """What commands.json still holds was promised to somebody: a new journal takes it over."""
    trainer = home.trainer()
    loop = make_loop()
    loop.controller.order("demo", Order(action="snapshot", reason="before the move"))
    loop.tick()
    other = make_loop(journal_url=f"sqlite:///{home.folder / 'other.db'}")
    [command] = other.commands()
    assert (command["state"], command["reason"], command["seq"]) == ("written", "before the move", 1)
    trainer.poll()
    other.tick()
    assert other.states() == [("snapshot", "applied")]


def test_a_number_that_was_answered_to_another_is_given_up(home: Any, make_loop: MakeLoop) -> None:
    """An answer to our number under another id is counted, and our command gets a new number."""
    trainer = home.trainer()
    loop = make_loop()
    loop.fire()
    loop.tick()
    ours = trainer.commands()[0]["id"]
    trainer.poll()
    trainer.carried_out.clear()
    trainer.results = [trainer.results[0].model_copy(update={"id": "somebody-else"})]
    trainer.write()
    loop.tick()
    assert loop.metric("control_file_errors_total", file="status", reason="displaced") == 1
    assert [(one["id"], one["seq"]) for one in trainer.commands()] == [(ours, 2)]
    trainer.poll()
    loop.tick()
    assert trainer.carried_out == [ours]
    assert loop.states() == [("pause", "applied")]


def test_a_newer_controller_is_left_alone(home: Any, make_loop: MakeLoop) -> None:
    """Where a newer epoch has been at work nothing is overwritten, and the older controller is not ready."""
    trainer = home.trainer()
    old = make_loop()
    # Two starts on a journal of its own: epoch 2, where the first controller has epoch 1.
    new = [make_loop(journal_url=f"sqlite:///{home.folder / 'other.db'}") for _ in range(2)][1]
    new.controller.order("demo", Order(action="snapshot"))
    new.tick()
    written = trainer.commands()
    old.fire()
    old.tick()
    assert trainer.commands() == written
    assert old.metric("write_failures_total", reason="fenced") == 1
    assert any("stop one of the two" in problem for problem in old.controller.problems())


def test_metrics_know_the_past_after_a_restart(home: Any, make_loop: MakeLoop) -> None:
    """Timestamps of the Watchdog and of applied commands are taken from the journal."""
    trainer = home.trainer()
    loop = make_loop()
    loop.fire("Watchdog", run=None)
    loop.fire()
    loop.tick()
    trainer.poll()
    loop.tick(2.0)
    heard, applied = loop.metric("watchdog_timestamp_seconds"), loop.commands()[0]["finished_at"]
    again = make_loop()
    again.controller.journal.read(again.controller._restore_metrics)
    assert again.metric("watchdog_timestamp_seconds") == heard
    assert again.metric("command_timestamp_seconds", run="demo", action="pause") == applied


def test_the_age_of_an_alert_is_measured_once(home: Any, make_loop: MakeLoop) -> None:
    """The histogram shows the delay of the chain, so resends do not count."""
    home.trainer()
    loop = make_loop()
    began = loop.clock.time - 1.25
    loop.fire(starts_at=began)
    loop.clock.time += 1000.0
    loop.fire(starts_at=began)
    assert loop.metric("alert_age_seconds_count") == 1
    assert loop.metric("alert_age_seconds_sum") == 1.25


def test_an_operator_cannot_flood_a_run(home: Any, make_loop: MakeLoop) -> None:
    """commands.json is bounded: the hundred and first unfinished command is refused with a sentence."""
    home.trainer()
    loop = make_loop()
    for _ in range(100):
        loop.controller.order("demo", Order(action="snapshot", reason="é" * 500))
    with pytest.raises(Conflict, match="100 unfinished commands"):
        loop.controller.order("demo", Order(action="snapshot"))
    loop.tick()
    assert commands_path(home.control, "demo").stat().st_size < 500_000


def test_a_fault_in_the_dispatcher_is_visible_and_survived(
    home: Any, make_loop: MakeLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bug in one look makes the controller unready, is logged, and does not end the thread's work."""
    home.trainer()
    loop = make_loop()
    dispatcher = loop.controller._dispatcher
    loop.fire()
    with monkeypatch.context() as patch:
        patch.setattr(dispatcher._carrier, "serve", lambda *_: 1 / 0)
        dispatcher.look()
    assert any("this is a bug" in problem for problem in loop.controller.problems())
    dispatcher.look()
    assert loop.controller.problems() == []
    assert loop.states() == [("pause", "written")]
