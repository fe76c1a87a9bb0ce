"""``trainswitch incidents``: when the trouble behind each alert began, and who is suspected."""

from __future__ import annotations

from typing import Any

import typer

from trainswitch.intervention.commands import check_run_name
from trainswitch_controller.cli.client import connect
from trainswitch_controller.cli.options import (
    ControllerOption,
    HomeOption,
    JsonOption,
    LimitOption,
    OptionalRunArgument,
    TokenFileOption,
    resolve_home,
)
from trainswitch_controller.cli.output import Report, ago


def register(app: typer.Typer) -> None:
    """Add the command of this module to `app`."""
    app.command(epilog="Example: trainswitch incidents gpt2")(incidents)


def incidents(
    run: OptionalRunArgument = None,
    limit: LimitOption = 20,
    controller: ControllerOption = None,
    token_file: TokenFileOption = None,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """List when the trouble behind each alert began, and the suspects, the first one first."""
    with connect(resolve_home(home), controller, token_file) as client:
        rows = client.incidents(run and check_run_name(run), limit)
    report = Report(as_json=as_json)
    if not rows:
        report.say("No onset was found; the controller looks for them where it is told of a Prometheus.")
    else:
        report.table(
            ("RUN", "ALERT", "FIRED", "ONSET", "STEP", "PLACE", "SUSPECT", "LEAD", "DETAIL"),
            (
                (
                    row["run"],
                    row["alertname"],
                    ago(row["starts_at"]),
                    ago(row["onset_at"]),
                    row["onset_step"],
                    *suspect,
                )
                for row in rows
                for suspect in _suspects(row)
            ),
        )
    report.result({"incidents": rows})


def _suspects(row: dict[str, Any]) -> list[tuple[object, ...]]:
    """Return place, name, lead and detail of each suspect; one row of dashes where there is none."""
    return [
        (place, f"{one['kind']}: {one['name']}", f"{one['lead_seconds']:.0f} s", one["detail"])
        for place, one in enumerate(row["suspects"], start=1)
    ] or [(None, None, None, None)]
