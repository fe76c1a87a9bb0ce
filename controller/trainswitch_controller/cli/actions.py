"""The commands that change a run, one for each action, and act for a run's own; approve and reject."""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Callable
from enum import Enum
from typing import Annotated, Any

import typer

from trainswitch.errors import CommandError
from trainswitch.intervention.commands import ACTIONS, check_action_name, check_run_name, checked_params
from trainswitch_controller.cli.client import connect
from trainswitch_controller.cli.options import (
    ControllerOption,
    HomeOption,
    JsonOption,
    RunArgument,
    TokenFileOption,
    resolve_home,
)
from trainswitch_controller.cli.output import Report
from trainswitch_controller.cli.waiting import describe, report_command, wait_for_answer

ReasonOption = Annotated[
    str, typer.Option("--reason", metavar="TEXT", help="Why; kept in the journal.", show_default=False)
]
WaitOption = Annotated[bool, typer.Option("--wait/--no-wait", help="Wait for the trainer's answer.")]
TimeoutOption = Annotated[float, typer.Option("--timeout", min=0.0, metavar="SECONDS", help="Longest wait.")]
Action = tuple[str, dict[str, Any]]


def _every(what: str) -> Any:
    return typer.Option(
        min=0, metavar="STEPS", help=f"{what}: every so many steps; 0 is never.", show_default=False
    )


def register(app: typer.Typer) -> None:
    """Add the commands of this module to `app`."""
    for function, example in (
        (pause, 'trainswitch pause gpt2 --snapshot --reason "loss looks odd"'),
        (resume, "trainswitch resume gpt2"),
        (snapshot, "trainswitch snapshot gpt2 --timeout 120"),
        (reduce_lr, "trainswitch reduce-lr gpt2 --factor 0.3"),
        (set_lr, "trainswitch set-lr gpt2 3e-4"),
        (clip_gradients, "trainswitch clip-gradients gpt2 0.5 --steps 1000"),
        (skip_batches, "trainswitch skip-batches gpt2 200"),
        (set_sampling, "trainswitch set-sampling gpt2 --layers 1 --weights 10"),
        (rollback, "trainswitch rollback gpt2 --lr-factor 0.5"),
        (stop, "trainswitch stop gpt2 --no-snapshot"),
        (act, "trainswitch act gpt2 drop_source --param name=web --param share=0.5"),
    ):
        name = function.__name__.replace("_", "-")
        app.command(name, epilog=f"Example: {example}")(_with_common_options(function))
    app.command(epilog="Example: trainswitch approve 01J9ZQ4T")(approve)
    app.command(epilog='Example: trainswitch reject 01J9ZQ4T --reason "the spike was one bad file"')(reject)


def pause(
    snapshot: Annotated[bool, typer.Option("--snapshot", help="Save a checkpoint as well.")] = False,
) -> Action:
    """Hold a run at its next step; nothing is lost."""
    return ("pause_and_snapshot" if snapshot else "pause"), {}


def resume() -> Action:
    """Let a paused run go on."""
    return "resume", {}


def snapshot(
    pin: Annotated[bool, typer.Option("--pin", help="Keep the checkpoint from rotation.")] = False,
) -> Action:
    """Save a checkpoint of a run now."""
    return "snapshot", _given(pin=pin or None)


def reduce_lr(
    factor: Annotated[
        float | None,
        typer.Option("--factor", help="What the learning rates are multiplied by.", show_default="0.5"),
    ] = None,
) -> Action:
    """Multiply a run's learning rates by a factor below 1."""
    return "reduce_lr", _given(factor=factor)


def set_lr(
    value: Annotated[float, typer.Argument(metavar="VALUE", show_default=False)],
) -> Action:
    """Set a run's largest learning rate; the others keep their ratios, and the schedule goes on from it."""
    return "set_lr", {"value": value}


def clip_gradients(
    max_norm: Annotated[float, typer.Argument(metavar="MAX_NORM", show_default=False)],
    steps: Annotated[
        int | None,
        typer.Option("--steps", help="For so many steps; 0 ends it.", show_default="until it is changed"),
    ] = None,
) -> Action:
    """Clip a run's gradients to a norm from its next step on."""
    return "clip_gradients", _given(max_norm=max_norm, steps=steps)


def skip_batches(
    count: Annotated[int, typer.Argument(metavar="COUNT", show_default=False)],
) -> Action:
    """Let a run draw its next batches without training on them."""
    return "skip_batches", {"count": count}


def set_sampling(
    grad_norm: Annotated[int | None, _every("The gradient norm")] = None,
    layers: Annotated[int | None, _every("The gradient norm of each layer")] = None,
    weights: Annotated[int | None, _every("The weight norm and update ratio of each layer")] = None,
    activations: Annotated[int | None, _every("The share of inactive units of each layer")] = None,
    checksum: Annotated[int | None, _every("The checksum of the weights")] = None,
) -> Action:
    """Change how often a run measures what."""
    intervals = _given(
        grad_norm=grad_norm, layers=layers, weights=weights, activations=activations, checksum=checksum
    )
    return "set_sampling", intervals


class DataChoice(Enum):
    """What a rollback does with the data."""

    SKIP = "skip"
    REWIND = "rewind"


def rollback(
    step: Annotated[
        int | None,
        typer.Option("--step", help="Load the checkpoint of this step.", show_default="newest stable one"),
    ] = None,
    before_step: Annotated[
        int | None,
        typer.Option("--before-step", help="Load the newest stable one up to this step.", show_default="any"),
    ] = None,
    or_oldest: Annotated[
        bool, typer.Option("--or-oldest", help="Where none is so old, load the oldest stable one.")
    ] = False,
    data: Annotated[
        DataChoice | None,
        typer.Option(
            "--data", help="Go on after the last batches, or back with the rest.", show_default="skip"
        ),
    ] = None,
    lr_factor: Annotated[
        float | None,
        typer.Option("--lr-factor", help="Multiply the learning rates afterwards.", show_default="unchanged"),
    ] = None,
) -> Action:
    """Put a run back to a checkpoint."""
    chosen = data.value if data is not None else None
    return "rollback", _given(
        step=step, before_step=before_step, or_oldest=or_oldest or None, data=chosen, lr_factor=lr_factor
    )


def stop(
    snapshot: Annotated[
        bool, typer.Option("--snapshot/--no-snapshot", help="Save a checkpoint before the loop ends.")
    ] = True,
) -> Action:
    """End a run's loop after its next step."""
    return "stop", {"snapshot": snapshot}


def act(
    name: Annotated[str, typer.Argument(metavar="ACTION", show_default=False)],
    param: Annotated[
        list[str] | None,
        typer.Option(
            "--param",
            metavar="NAME=VALUE",
            help="A parameter; JSON, or else text. Repeatable.",
            show_default="none",
        ),
    ] = None,
) -> Action:
    """Let a run carry out an action that its training script has registered."""
    return name, dict(_parameter(one) for one in param or ())


def approve(
    command_id: Annotated[str, typer.Argument(metavar="COMMAND_ID", show_default=False)],
    wait: WaitOption = True,
    timeout: TimeoutOption = 30.0,
    controller: ControllerOption = None,
    token_file: TokenFileOption = None,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Approve a command that the policy's mode 'approve' holds back."""
    with connect(resolve_home(home), controller, token_file) as client:
        command = client.approve(command_id)
        if wait:
            command = wait_for_answer(client, command, timeout)
    raise typer.Exit(report_command(Report(as_json=as_json), command))


def reject(
    command_id: Annotated[str, typer.Argument(metavar="COMMAND_ID", show_default=False)],
    reason: ReasonOption = "",
    controller: ControllerOption = None,
    token_file: TokenFileOption = None,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Reject a command that the policy's mode 'approve' holds back; its alert does not propose it again."""
    with connect(resolve_home(home), controller, token_file) as client:
        command = client.reject(command_id, reason)
    report = Report(as_json=as_json)
    report.say(f"{describe(command)} was rejected.")
    report.result({"command": command})


def _send(
    action: str,
    params: dict[str, Any],
    run: RunArgument,
    *,
    reason: ReasonOption = "",
    wait: WaitOption = True,
    timeout: TimeoutOption = 30.0,
    controller: ControllerOption = None,
    token_file: TokenFileOption = None,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    check_run_name(run)
    # Which actions of its own a run has is known to the controller only.
    checked_params(action, params, custom=() if action in ACTIONS else (check_action_name(action),))
    with connect(resolve_home(home), controller, token_file) as client:
        command = client.issue(run, action, params, reason)
        if wait:
            command = wait_for_answer(client, command, timeout)
    raise typer.Exit(report_command(Report(as_json=as_json), command))


def _with_common_options(action: Callable[..., Action]) -> Callable[..., None]:
    """Return the command for `action`: its own options, and those that sending any action takes."""
    own = inspect.signature(action, eval_str=True).parameters
    common = inspect.signature(_send, eval_str=True).parameters
    parameters = [
        parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        for parameter in (common["run"], *own.values(), *list(common.values())[3:])
    ]

    @functools.wraps(action)
    def command(**given: Any) -> None:
        name, params = action(**{option: given.pop(option) for option in own})
        _send(name, params, **given)

    # typer reads both to find a command's options.
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return command


def _parameter(text: str) -> tuple[str, Any]:
    """Return name and value of ``NAME=VALUE``."""
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise CommandError(f"parameter {text[:80]!r} is not NAME=VALUE: write --param share=0.5.")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def _given(**params: Any) -> dict[str, Any]:
    """Leave out what was not given, so that the action's own default holds."""
    return {name: value for name, value in params.items() if value is not None}
