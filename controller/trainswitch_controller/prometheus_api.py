"""Prometheus's HTTP API, asked for series over a range: bounded in time and in the length of answers."""

from __future__ import annotations

import dataclasses
import json
import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

import requests

from trainswitch_controller.errors import PrometheusUnavailable

log = logging.getLogger(__name__)

_MAX_ANSWER_BYTES = 4 << 20
_CHUNK_BYTES = 1 << 16
_LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})


@dataclasses.dataclass(frozen=True)
class Line:
    """One series: labels without the metric's name, and points in the order of time."""

    labels: Mapping[str, str]
    times: Sequence[float]
    """Unix seconds."""
    values: Sequence[float]
    """May hold NaN and infinity."""


class _Refused(Exception):
    """Prometheus answers, but not this; the message says why."""


class PrometheusApi:
    """One Prometheus, or what speaks its API; used by several threads."""

    def __init__(self, url: str) -> None:
        self._url = f"{url.rstrip('/')}/api/v1/query_range"
        self._host = urlsplit(url).hostname
        self._complained: set[str] = set()

    def ask(
        self, queries: Mapping[str, str], *, start: float, end: float, step: float, seconds: float
    ) -> dict[str, list[Line]]:
        """Return the series of each query; what Prometheus refuses is left out, and logged once by its name.

        Args:
            queries: name → PromQL.
            start: first moment, in Unix seconds.
            end: last moment.
            step: seconds between two points.
            seconds: how long all questions together may take.

        Raises:
            PrometheusUnavailable: it cannot be reached, or did not answer in time.
        """
        deadline = time.monotonic() + seconds
        window = {"start": f"{start:.3f}", "end": f"{end:.3f}", "step": f"{step:g}"}
        found: dict[str, list[Line]] = {}
        with requests.Session() as session:
            # A proxy of the environment cannot reach this machine's own loopback.
            session.trust_env = self._host not in _LOOPBACK
            for name, query in queries.items():
                try:
                    found[name] = self._ask(session, {"query": query, **window}, deadline)
                except _Refused as error:
                    self._complain(name, str(error))
        return found

    def _ask(self, session: requests.Session, question: Mapping[str, str], deadline: float) -> list[Line]:
        left = deadline - time.monotonic()
        if left <= 0.0:
            raise PrometheusUnavailable(f"Prometheus at {self._host} did not answer in time.")
        try:
            with session.post(
                self._url,
                data={**question, "timeout": f"{left:.3f}"},
                timeout=left,
                allow_redirects=False,
                stream=True,
            ) as answer:
                body = self._read(answer, deadline)
                status = answer.status_code
        except requests.RequestException as error:
            raise PrometheusUnavailable(
                f"Prometheus at {self._host} cannot be asked ({type(error).__name__}): check prometheus_url."
            ) from error
        if status in {requests.codes.bad_request, requests.codes.unprocessable}:
            raise _Refused(body.decode(errors="replace")[:300])
        if status != requests.codes.ok:
            raise PrometheusUnavailable(f"Prometheus at {self._host} answers {status}: check prometheus_url.")
        return _lines(body, self._host)

    def _read(self, answer: requests.Response, deadline: float) -> bytes:
        body = bytearray()
        for chunk in answer.iter_content(_CHUNK_BYTES):
            body += chunk
            if len(body) > _MAX_ANSWER_BYTES:
                raise _Refused(f"its answer is longer than {_MAX_ANSWER_BYTES} bytes: select fewer series.")
            if time.monotonic() > deadline:
                raise PrometheusUnavailable(f"Prometheus at {self._host} did not answer in time.")
        return bytes(body)

    def _complain(self, name: str, sentence: str) -> None:
        if name not in self._complained:
            self._complained.add(name)
            log.error("%s: Prometheus refuses its expression: %s", name, " ".join(sentence.split()))


def _lines(body: bytes, host: str | None) -> list[Line]:
    try:
        results: list[dict[str, Any]] = json.loads(body)["data"]["result"]
        return [
            Line(
                labels={name: text for name, text in one["metric"].items() if name != "__name__"},
                times=[float(point[0]) for point in one["values"]],
                values=[float(point[1]) for point in one["values"]],
            )
            for one in results
        ]
    except (ValueError, KeyError, TypeError) as error:
        raise PrometheusUnavailable(
            f"what answers at {host} does not speak Prometheus's API: check prometheus_url."
        ) from error
