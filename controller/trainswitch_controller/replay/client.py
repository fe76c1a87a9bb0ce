"""Writing samples to the replay's Prometheus, and asking it for ranges."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping
from typing import Any

import requests

from trainswitch_controller.errors import ReplayError
from trainswitch_controller.replay.remote_write import HEADERS, Encoder
from trainswitch_controller.replay.series import Labels, Series, sorted_labels
from trainswitch_controller.replay.timeline import Grid

_MOST_POINTS = 11_000
"""That Prometheus returns of one series in one answer."""
_TIMEOUT_SECONDS = 3600.0


class PrometheusClient:
    """One connection to a Prometheus; for one thread at a time."""

    def __init__(self, url: str) -> None:
        """Connect to the Prometheus at `url` when it is first needed."""
        self._url = url
        self._session = requests.Session()
        self._session.trust_env = False  # a proxy of the environment is not for the loopback

    def close(self) -> None:
        """Close the connection."""
        self._session.close()

    def write(self, encoder: Encoder, series: Iterable[Series]) -> None:
        """Store series.

        Raises:
            ReplayError: Prometheus refuses them.
        """
        for body in encoder.requests(series):
            try:
                answer = self._session.post(
                    f"{self._url}/api/v1/write", data=body, headers=HEADERS, timeout=_TIMEOUT_SECONDS
                )
            except requests.RequestException as error:
                raise ReplayError(f"the replay's Prometheus is gone: {error}.") from error
            if not answer.ok:
                raise ReplayError(f"the replay's Prometheus refused samples: {answer.text.strip()}.")

    def query_grid(self, expression: str, grid: Grid, count: int) -> list[Series]:
        """Evaluate an expression at the first `count` moments of a grid.

        Raises:
            ReplayError: it cannot be evaluated.
        """
        found: dict[Labels, Series] = {}
        for first in range(0, count, _MOST_POINTS):
            last = min(count, first + _MOST_POINTS) - 1
            for result in self._query_range(expression, grid, first, last):
                labels = sorted_labels(result["metric"])
                series = found.setdefault(labels, Series(labels))
                _append(series, result["values"], grid)
        return list(found.values())

    def _query_range(self, expression: str, grid: Grid, first: int, last: int) -> list[Mapping[str, Any]]:
        asked = {
            "query": expression,
            "start": f"{grid.at(first) / 1000:.3f}",
            "end": f"{grid.at(last) / 1000:.3f}",
            "step": f"{grid.step / 1000:.3f}",
        }
        try:
            answer = self._session.post(
                f"{self._url}/api/v1/query_range", data=asked, timeout=_TIMEOUT_SECONDS
            )
            document = answer.json()
        except requests.RequestException as error:
            raise ReplayError(f"the replay's Prometheus is gone: {error}.") from error
        if document["status"] != "success":
            raise ReplayError(f"{document['error']}.")
        result: list[Mapping[str, Any]] = document["data"]["result"]
        return result


def _append(series: Series, points: list[tuple[float, str]], grid: Grid) -> None:
    """Add the points of an answer, which are in the order of time."""
    first, last = grid.index(points[0][0] * 1000), grid.index(points[-1][0] * 1000)
    if last - first + 1 == len(points):  # without a gap, as most are
        series.extend(first, array("d", [float(value) for _, value in points]))
        return
    for moment, value in points:
        series.add(grid.index(moment * 1000), float(value))
