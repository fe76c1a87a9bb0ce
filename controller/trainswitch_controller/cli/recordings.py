"""Arguments and options of the commands that read recorded runs, and the reading."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from trainswitch_controller.cli.errors import UsageProblem
from trainswitch_controller.cli.output import complain
from trainswitch_controller.errors import RecordedRunError
from trainswitch_controller.replay.model import Progress, RecordedRun
from trainswitch_controller.replay.readers import FORMATS, Format, parse_columns, read

RunsArgument = Annotated[
    list[Path],
    typer.Argument(
        metavar="RUNS…",
        help="Logs of runs, or folders with some: CSV, JSON lines, trainer_state.json of Hugging Face, "
        "TensorBoard's event files, metrics.csv of Lightning, exports of Weights & Biases.",
        show_default=False,
    ),
]
FormatOption = Annotated[
    str | None,
    typer.Option(
        "--format",
        metavar="FORMAT",
        help=f"Read all logs as this: {', '.join(FORMATS)}.",
        show_default="told from their content",
    ),
]
ColumnOption = Annotated[
    list[str] | None,
    typer.Option(
        "--column",
        metavar="FIELD=NAME",
        help="What the log calls a value that is not found by itself, such as loss=train/ce. Fields: step, "
        "epoch, loss, grad_norm, learning_rate, tokens_per_s, step_time_s, and eval_<metric>.",
        show_default=False,
    ),
]


def read_runs(
    paths: Sequence[Path],
    form: str | None,
    columns: Sequence[str] | None,
    progress: Progress = lambda _what, _done, _total: None,
) -> tuple[RecordedRun, ...]:
    """Return the runs in `paths`; files among them that are no logs are named on standard error.

    Raises:
        UsageProblem: the format or a column is not valid.
        RecordedRunError: a log is damaged, a path does not exist, or there is no run.
    """
    known: dict[str, Format] = {name: name for name in FORMATS}
    if form is not None and form not in known:
        raise UsageProblem(f"--format {form!r} does not exist: use one of {', '.join(FORMATS)}.")
    try:
        given = parse_columns(columns or ())
    except RecordedRunError as error:
        raise UsageProblem(str(error)) from None
    found = read(paths, form=known[form] if form else None, columns=given, progress=progress)
    for sentence in found.left_out:
        complain(sentence)
    return found.runs
