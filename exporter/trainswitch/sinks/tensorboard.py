"""TensorBoard event files, with a layout for its Custom Scalars page; needs the package tensorboard only."""

from __future__ import annotations

import io
import re
import time
from pathlib import Path

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.compat.proto.types_pb2 import DT_STRING
from tensorboard.plugins.custom_scalar import layout_pb2 as layout
from tensorboard.plugins.custom_scalar import metadata
from tensorboard.summary.writer.record_writer import RecordWriter

from trainswitch.recording.records import FIRST_LEARNING_RATE, Kind, Record, Value
from trainswitch.sinks.parts import Parts
from trainswitch.sinks.sink import Derived

CONTROL_SIGMAS = 3.0
"""Distance of the control limits from the centre line; the dashboard draws them there, too."""

_VALUES = (
    ("loss/value", Value.LOSS),
    ("gradients/norm", Value.GRAD_NORM),
    ("time/step_seconds", Value.STEP_SECONDS),
    ("time/data_wait_seconds", Value.DATA_WAIT_SECONDS),
    ("progress/epoch", Value.EPOCH),
    ("progress/loss_scale", Value.LOSS_SCALE),
)


class TensorBoardSink:
    """Writes ``events.out.tfevents.<number>.trainswitch``.

    After a rollback TensorBoard is told to forget the steps that are done again; the CSV keeps them.
    The library's own writer is not used because it writes from a thread of its own, where a full disk ends
    in a traceback instead of an error for the caller.
    """

    def __init__(self, folder: Path, max_bytes: int) -> None:
        """Write into `folder`, at most about `max_bytes`; nothing is written yet."""
        self._buffer = io.BytesIO()
        self._writer = RecordWriter(self._buffer)
        self._last_step: int | None = None
        for event in (
            Event(wall_time=time.time(), file_version="brain.Event:2"),
            Event(wall_time=time.time(), summary=Summary(value=[_layout_value()])),
        ):
            self._add(event)
        self._parts = Parts(folder, "events.out.tfevents.", ".trainswitch", self._taken(), max_bytes)

    def take(self, record: Record, derived: Derived) -> None:
        """Take one record into memory."""
        step = record.step
        if self._last_step is None or (record.kind == Kind.STEP and step <= self._last_step):
            start = SessionLog(status=SessionLog.START)
            self._add(Event(wall_time=record.time, step=step, session_log=start))
        if record.kind == Kind.STEP or self._last_step is None:
            self._last_step = step
        values = _scalars(record, derived)
        summary = Summary(value=[Summary.Value(tag=tag, simple_value=value) for tag, value in values])
        self._add(Event(wall_time=record.time, step=step, summary=summary))

    def flush(self) -> None:
        """Write what was taken.

        Raises:
            OSError: it cannot be written; what was taken is lost.
        """
        events = self._taken()
        if events:
            self._parts.append(events)

    def close(self) -> None:
        """Write what was taken."""
        self.flush()

    def _add(self, event: Event) -> None:
        self._writer.write(event.SerializeToString())

    def _taken(self) -> bytes:
        events = self._buffer.getvalue()
        self._buffer.seek(0)
        self._buffer.truncate()
        return events


def _scalars(record: Record, derived: Derived) -> list[tuple[str, float]]:
    if record.kind == Kind.EVALUATION:
        return [(f"evaluation/{record.label}", record.values[0])]
    if record.kind == Kind.LEARNING_RATE:
        return [(f"learning_rate/group_{record.values[0]:.0f}", record.values[1])]
    found = [(tag, value) for tag, index in _VALUES if (value := record.get(index)) is not None]
    rates = record.values[FIRST_LEARNING_RATE:][: int(record.get(Value.LEARNING_RATES) or 0)]
    found += [(f"learning_rate/group_{group}", rate) for group, rate in enumerate(rates)]
    seconds, tokens = record.get(Value.STEP_SECONDS), record.get(Value.TOKENS)
    if seconds and tokens:
        found.append(("time/tokens_per_second", tokens / seconds))
    if record.get(Value.LOSS) is not None and derived.center is not None and derived.sigma is not None:
        found += [
            ("loss/center", derived.center),
            ("loss/lower_limit", derived.center - CONTROL_SIGMAS * derived.sigma),
            ("loss/upper_limit", derived.center + CONTROL_SIGMAS * derived.sigma),
        ]
    return found


def _layout_value() -> Summary.Value:
    """Return the summary that the Custom Scalars page takes its charts from."""
    categories = [
        layout.Category(title="Loss", chart=[_control_chart()]),
        layout.Category(
            title="Gradients",
            chart=[
                _lines("Gradient norm before clipping", "gradients/norm"),
                _lines("Learning rate", "learning_rate/", exact=False),
            ],
        ),
        layout.Category(
            title="Time",
            chart=[
                _lines("Seconds a step", "time/step_seconds", "time/data_wait_seconds"),
                _lines("Tokens a second", "time/tokens_per_second"),
            ],
        ),
        layout.Category(title="Evaluation", chart=[_lines("Evaluation", "evaluation/", exact=False)]),
    ]
    document = layout.Layout(version=0, category=categories).SerializeToString()
    return Summary.Value(
        tag=metadata.CONFIG_SUMMARY_TAG,
        metadata=metadata.create_summary_metadata(),
        tensor=TensorProto(dtype=DT_STRING, string_val=[document]),
    )


def _control_chart() -> layout.Chart:
    """Return a chart of the loss within its limits; the centre line is a series without a margin."""
    series = layout.MarginChartContent.Series
    return layout.Chart(
        title=f"Loss, centre line and limits at {CONTROL_SIGMAS:.0f} sigma",
        margin=layout.MarginChartContent(
            series=[
                series(value="loss/value", lower="loss/lower_limit", upper="loss/upper_limit"),
                series(value="loss/center", lower="loss/center", upper="loss/center"),
            ]
        ),
    )


def _lines(title: str, *tags: str, exact: bool = True) -> layout.Chart:
    """Return a chart of the tags that are, or with `exact` False begin with, one of `tags`."""
    patterns = [f"^{re.escape(tag)}{'$' if exact else ''}" for tag in tags]
    return layout.Chart(title=title, multiline=layout.MultilineChartContent(tag=patterns))
