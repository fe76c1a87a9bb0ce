"""Prometheus's text format, at a third of the library's price: what precedes a value is rendered once."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import cast

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample
from prometheus_client.utils import floatToGoString

_LINES_AT_A_TIME = 100
_MOMENT_SECONDS = 1e-3


class Exposition:
    """Renders families, and remembers the text of their headers and series.

    A scrape in the trainer's process takes turns with the training thread, so each millisecond counts, and
    most of the library's time goes into escaping label values that never change. The text is the library's
    own, byte for byte, except for the ``_created`` series, which would double the families. (The library's
    switch for them is global, and so would change what the trainer's process exports elsewhere.)
    """

    def __init__(self) -> None:
        """Remember nothing yet."""
        self._headers: dict[str, str] = {}
        self._series: dict[tuple[str, ...], str] = {}

    def render(self, families: Iterable[Family]) -> bytes:
        """Return the samples of gauges, counters and histograms without timestamps, as text."""
        parts: list[str] = []
        pause_at = _LINES_AT_A_TIME
        for family in families:
            if len(parts) >= pause_at:
                pause_at = len(parts) + _LINES_AT_A_TIME
                let_others_run()
            header = self._headers.get(family.name)
            if header is None:
                header = self._headers[family.name] = _render(family, [])
            parts.append(header)
            for sample in family.samples:
                if sample.name.endswith("_created"):
                    continue
                key = (sample.name, *sample.labels.values())
                series = self._series.get(key)
                if series is None:
                    series = self._series[key] = _render(family, [sample])[len(header) :].rpartition(" ")[0]
                value = floatToGoString(sample.value)  # type: ignore[no-untyped-call]
                parts.append(f"{series} {value}\n")
        return "".join(parts).encode()


def let_others_run() -> None:
    """Give Python's lock away for a moment.

    A thread that waits for the lock gets it only after five milliseconds otherwise, and the training thread
    may wait for it after every operation. The moment is long enough for a short step to get ahead.
    """
    time.sleep(_MOMENT_SECONDS)


def _render(family: Family, samples: list[Sample]) -> str:
    """Return what the library makes of some samples of a family."""
    part = Family(family.name, family.documentation, family.type)
    part.samples = samples

    class Part(Collector):
        def collect(self) -> Iterable[Family]:
            return [part]

    return generate_latest(cast("CollectorRegistry", Part())).decode()
