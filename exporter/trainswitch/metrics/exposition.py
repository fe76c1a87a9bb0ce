"""Prometheus's text format, where only what changed since the last scrape is written anew."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol, cast

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample
from prometheus_client.utils import floatToGoString

from trainswitch.metrics.python_lock import let_others_run

_LINES_AT_A_TIME = 50
_FIRST_WITH_EXPONENT = 1_000_000


class Values(Protocol):
    """What stands behind some series, as in `trainswitch.metrics.values`."""

    text: str | None
    """The lines of its samples; None since they changed."""
    series: list[str] | None
    """What precedes the number in each line; None until they were written once."""

    def samples(self) -> Iterator[Sample]:
        """Yield the samples."""

    def numbers(self) -> Sequence[float]:
        """Return the values of the samples alone, in the same order."""


class Exposition:
    """Renders samples, and remembers the text of headers, series, and values that stay as they are.

    A scrape in the trainer's process takes turns with the training thread, so each millisecond counts; most
    series of a scrape are as they were at the last one, and most of the library's time goes into escaping
    label values that never change. The text is the library's own, byte for byte, except for the ``_created``
    series, which would double the families. (The library's switch for them is global, and so would change
    what the trainer's process exports elsewhere.)
    """

    def __init__(self) -> None:
        """Remember nothing yet."""
        self._headers: dict[str, str] = {}
        self._series: dict[tuple[str, ...], str] = {}

    def render(self, families: Iterable[tuple[Family, Iterable[Values]]]) -> str:
        """Return the text of families and the values behind their series."""
        parts: list[str] = []
        written = 0
        for family, values in families:
            parts.append(self._header(family))
            for value in values:
                text = value.text
                if text is None:
                    series = value.series
                    if series is None:
                        series = value.series = [self._line(family, sample) for sample in value.samples()]
                    numbers = map(_text_of, value.numbers())
                    text = "".join([f"{one} {number}\n" for one, number in zip(series, numbers, strict=True)])
                    value.text = text
                    written += len(series)
                parts.append(text)
            if written >= _LINES_AT_A_TIME:
                written = 0
                let_others_run()
        return "".join(parts)

    def render_readings(self, families: Iterable[tuple[Family, Iterable[tuple[Sample, float]]]]) -> str:
        """Return the text of families and their samples, each with the value that it has now."""
        parts: list[str] = []
        for family, readings in families:
            parts.append(self._header(family))
            parts.extend(f"{self._line(family, one)} {_text_of(value)}\n" for one, value in readings)
        return "".join(parts)

    def _header(self, family: Family) -> str:
        header = self._headers.get(family.name)
        if header is None:
            header = self._headers[family.name] = _render(family, [])
        return header

    def _line(self, family: Family, sample: Sample) -> str:
        """Return what precedes the value in a sample's line."""
        key = (sample.name, *sample.labels.values())
        series = self._series.get(key)
        if series is None:
            text = _render(family, [sample])[len(self._header(family)) :]
            series = self._series[key] = text.rpartition(" ")[0]
        return series


def _text_of(number: float) -> str:
    if type(number) is int and number < _FIRST_WITH_EXPONENT:
        return f"{number}.0"
    text: str = floatToGoString(number)  # type: ignore[no-untyped-call]
    return text


def _render(family: Family, samples: list[Sample]) -> str:
    """Return what the library makes of some samples of a family."""
    part = Family(family.name, family.documentation, family.type)
    part.samples = samples

    class Part(Collector):
        def collect(self) -> Iterable[Family]:
            return [part]

    return generate_latest(cast("CollectorRegistry", Part())).decode()
