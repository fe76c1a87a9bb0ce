"""The ``demo`` subcommand."""

from __future__ import annotations

import contextlib
import enum
import importlib.util
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from trainswitch_controller.cli.client import ControllerClient
from trainswitch_controller.cli.demo.scenario import Outcome, Scenario
from trainswitch_controller.cli.demo.trainers import Trainer
from trainswitch_controller.cli.errors import StackError
from trainswitch_controller.cli.evidence import Evidence
from trainswitch_controller.cli.options import HomeOption, JsonOption, resolve_home
from trainswitch_controller.cli.output import Report, complain, console
from trainswitch_controller.cli.stack import Stack, start_stack, stop_stack

_STAGES = {
    "fault": ("trainer", "the faulty step ended"),
    "first_sample": ("Prometheus", "first sample with it"),
    "firing": ("Prometheus", "a critical alert fires"),
    "alertmanager": ("Alertmanager", "it has the alert, which began"),
    "webhook": ("journal", "the webhook is stored"),
    "written": ("journal", "commands.json holds the command"),
    "applied": ("status.json", "the trainer has carried it out"),
}


class FaultKind(str, enum.Enum):
    """What goes wrong."""

    NAN_BATCH = "nan-batch"
    LR_EXPLOSION = "lr-explosion"
    NONE = "none"


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command("demo", epilog="Example: trainswitch demo --fault lr-explosion --json")(_demo)


def _demo(
    fault: Annotated[FaultKind, typer.Option(help="What poisons the run.")] = FaultKind.NAN_BATCH,
    policy: Annotated[
        Path | None,
        typer.Option(metavar="FILE", exists=True, dir_okay=False, help="Policy instead of conservative.yml."),
    ] = None,
    steps: Annotated[int, typer.Option(min=100, help="Length of the run.")] = 400,
    fault_step: Annotated[
        int | None,
        typer.Option(min=1, show_default="3/5 of the steps", help="Step at which the fault strikes."),
    ] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Leave the stack running at the end.")] = False,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Train a small GPT on English text, poison it, and watch the switch save it.

    A fresh local stack is started for it. Exit code 0 means that every stage was seen in the part that owns
    it, and that the run ended as well as one without the fault.
    """
    if importlib.util.find_spec("torch") is None:
        raise StackError(
            "the demo trains with PyTorch, which is not installed: pip install 'trainswitch[torch]'."
        )
    struck = fault_step if fault_step is not None else steps * 3 // 5
    if not 0 < struck < steps:
        raise StackError(f"--fault-step {struck} is not within the run: choose one below --steps {steps}.")
    report = Report(as_json=as_json)
    folder = resolve_home(home) / "demo" / time.strftime("%Y%m%d-%H%M%S")
    ended = False
    try:
        stack = start_stack(folder, policy=policy, on_progress=report.say)
        outcome = _play(stack, fault.value, struck, steps, report)
        _tell(report, outcome, stack, kept=keep)
        ended = True
    finally:
        if not (keep and ended):
            stop_stack(folder)
    if outcome.failures():
        raise typer.Exit(1)


def _play(stack: Stack, fault: str, fault_step: int, steps: int, report: Report) -> Outcome:
    with contextlib.ExitStack() as leaving:
        client = leaving.enter_context(ControllerClient(stack.controller, stack.operator_token_file))
        trainer = Trainer(stack.home, "gpt-demo", steps=steps, fault=fault, fault_step=fault_step)
        leaving.callback(trainer.end)
        twin = None
        if fault != "none":
            twin = Trainer(stack.home, "gpt-unfaulted", steps=steps, fault="none", fault_step=fault_step)
            leaving.callback(twin.end)
            report.say(f"Training gpt-demo, with {fault} at step {fault_step}, and gpt-unfaulted beside it.")
        else:
            report.say("Training gpt-demo without a fault.")
        progress: Console = console(stderr=True)
        with progress.status("starting") as line:
            scenario = Scenario(
                trainer, twin, Evidence(stack, client, trainer.run), client, lambda text: report.say(text)
            )
            return scenario.play(fault, fault_step, line.update)


def _tell(report: Report, outcome: Outcome, stack: Stack, *, kept: bool) -> None:
    seconds = outcome.timeline.since_fault()
    if outcome.fault != "none":
        report.say("")
        rows = []
        before = 0.0
        for stage, (owner, text) in _STAGES.items():
            at = seconds[stage]
            rows.append((stage, owner, text, _seconds(at), _seconds(None if at is None else at - before)))
            before = before if at is None else at
        report.table(("stage", "seen in", "", "s after fault", "s after the one before"), rows)
    report.say("")
    for row in outcome.interventions:
        report.say(f"intervention: {row['action']} for {row['alertname']} on {row['run']}: {row['detail']}")
    if outcome.val_loss is not None and outcome.unfaulted_val_loss is not None:
        verdict = "recovered" if outcome.recovered else "NOT recovered"
        report.say(
            f"interventions: {len(outcome.interventions)}; validation loss {outcome.val_loss:.4f}, "
            f"unfaulted {outcome.unfaulted_val_loss:.4f}: {verdict}."
        )
    urls = {
        "prometheus": stack.prometheus,
        "alertmanager": stack.alertmanager,
        "controller": stack.controller,
    }
    if stack.grafana is not None:
        urls["grafana"] = stack.grafana
    if kept:
        report.say("Look at " + ", ".join(f"{name} {url}" for name, url in urls.items()) + ".")
        report.say(f"End it with: trainswitch stack down --home {stack.home}")
    else:
        report.say("Run it with --keep to look at Prometheus, Alertmanager and Grafana afterwards.")
    for sentence in outcome.failures():
        complain(sentence)
    report.result(_document(outcome, seconds, urls, stack))


def _document(
    outcome: Outcome, seconds: dict[str, float | None], urls: dict[str, str], stack: Stack
) -> dict[str, Any]:
    return {
        "ok": not outcome.failures(),
        "fault": outcome.fault,
        "fault_step": outcome.fault_step,
        "detect_s": seconds["firing"],
        "apply_s": seconds["applied"],
        "recovered": outcome.recovered,
        "interventions": len(outcome.interventions),
        "actions": [row["action"] for row in outcome.interventions],
        "alerts": [row["alertname"] for row in outcome.interventions],
        "operator_actions": [row["action"] for row in outcome.operator],
        "val_loss": outcome.val_loss,
        "unfaulted_val_loss": outcome.unfaulted_val_loss,
        "timeline": outcome.timeline.stages(),
        "seconds_after_fault": seconds,
        "failures": outcome.failures(),
        "home": str(stack.home),
        "urls": urls,
    }


def _seconds(value: float | None) -> str:
    return "not seen" if value is None else f"{value:.2f}"
