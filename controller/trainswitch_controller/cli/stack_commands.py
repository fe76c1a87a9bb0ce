"""``trainswitch stack``: the local Prometheus, Alertmanager, controller and Grafana."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import TypeAdapter

from trainswitch_controller.cli.errors import EXIT_FAILED
from trainswitch_controller.cli.options import HomeOption, JsonOption, resolve_home
from trainswitch_controller.cli.output import Report, console
from trainswitch_controller.cli.stack import Stack, load_stack, probe_stack, start_stack, stop_stack


def register(app: typer.Typer) -> None:
    """Add the commands of this module to `app`."""
    group = typer.Typer(help="Start and stop Prometheus, Alertmanager, the controller and Grafana here.")
    group.command(epilog="Example: trainswitch stack up --policy policies/autonomous.yml")(up)
    group.command(epilog="Example: trainswitch stack down")(down)
    group.command(epilog="Example: trainswitch stack status --json")(status)
    app.add_typer(group, name="stack", no_args_is_help=True)


def _port_option(service: str, default: int) -> Any:
    return typer.Option(
        f"--{service}-port",
        min=1,
        max=65535,
        help=f"Port of {service.capitalize()}, and no other.",
        show_default=f"{default}, or any free one",
    )


def up(
    policy: Annotated[
        Path | None,
        typer.Option(
            "--policy", metavar="FILE", help="The controller's policy.", show_default="conservative.yml"
        ),
    ] = None,
    prometheus_port: Annotated[int | None, _port_option("prometheus", 9090)] = None,
    alertmanager_port: Annotated[int | None, _port_option("alertmanager", 9093)] = None,
    controller_port: Annotated[int | None, _port_option("controller", 9095)] = None,
    grafana_port: Annotated[int | None, _port_option("grafana", 3000)] = None,
    bin_dir: Annotated[
        list[Path] | None,
        typer.Option(
            "--bin-dir",
            metavar="DIR",
            help="Where to look for binaries before PATH; may be repeated.",
            show_default=False,
        ),
    ] = None,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Start what is not running yet, and wait until all of it is ready."""
    messages = console(stderr=True)
    with messages.status("Starting the stack"):
        stack = start_stack(
            resolve_home(home),
            policy=policy,
            prometheus_port=prometheus_port,
            alertmanager_port=alertmanager_port,
            controller_port=controller_port,
            grafana_port=grafana_port,
            bin_dirs=bin_dir or (),
            on_progress=lambda sentence: messages.print(sentence, markup=False, soft_wrap=True),
        )
    report = Report(as_json=as_json)
    report.say(f"The stack is up. Operator token: {stack.operator_token_file}")
    _show(report, stack, probe_stack(stack))


def down(home: HomeOption = None, as_json: JsonOption = False) -> None:
    """End the stack's processes; its data and logs stay."""
    messages = console(stderr=True)
    with messages.status("Ending the stack"):
        ended = stop_stack(
            resolve_home(home),
            on_progress=lambda sentence: messages.print(sentence, markup=False, soft_wrap=True),
        )
    report = Report(as_json=as_json)
    report.say("The stack is down." if ended else "No stack was running.")
    report.result({"ended": [process.name for process in ended]})


def status(home: HomeOption = None, as_json: JsonOption = False) -> None:
    """Show the stack's processes; exit code 1 unless all of it is ready."""
    folder = resolve_home(home)
    report = Report(as_json=as_json)
    stack = load_stack(folder)
    if stack is None:
        report.say(f"No stack was started in {folder}: run 'trainswitch stack up'.")
        report.result({"home": str(folder), "processes": []})
        raise typer.Exit(EXIT_FAILED)
    states = probe_stack(stack)
    _show(report, stack, states)
    raise typer.Exit(0 if set(states.values()) == {"ready"} else EXIT_FAILED)


def _show(report: Report, stack: Stack, states: dict[Any, str]) -> None:
    report.table(
        ("SERVICE", "STATE", "ADDRESS", "VERSION", "PID", "LOG"),
        (
            (process.name, states[process.name], process.url, process.version, process.pid, process.log)
            for process in stack.processes
        ),
    )
    document = TypeAdapter(Stack).dump_python(stack, mode="json")
    for row in document["processes"]:
        row["state"] = states[row["name"]]
    report.result({**document, "operator_token_file": str(stack.operator_token_file)})
