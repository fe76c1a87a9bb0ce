"""What the search for onsets exports: its results as a counter, and the newest incidents' suspects."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Literal, get_args

from prometheus_client import CollectorRegistry, Counter
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from sqlalchemy import select
from sqlalchemy.orm import Session

from trainswitch_controller.onset.incidents import IncidentRecord

Result = Literal["found", "nothing", "failed", "late", "limited", "dropped"]
"""Something, or ``nothing``, had left its band; Prometheus ``failed``, or had just before; it had been asked
too often (``limited``); too many alerts waited (``dropped``). ``late``, which is counted besides: a rollback
went ahead before the answer was there."""
RESULTS: tuple[Result, ...] = get_args(Result)
SHOWN = 3
"""Suspects of an incident that are exported."""
KEPT_S = 86400.0
"""How long an incident is exported after its alert began."""
MAX_INCIDENTS = 500
"""That are exported at once, the newest ones."""


@dataclasses.dataclass(frozen=True)
class _Shown:
    starts_at: float
    suspects: tuple[Mapping[str, Any], ...]


class Exported(Collector):
    """The newest incident of each run and alert; `now` returns Unix seconds."""

    def __init__(
        self, registry: CollectorRegistry, alertnames: Collection[str], now: Callable[[], float]
    ) -> None:
        """Show the incidents of the alerts in `alertnames`: other names are not ours to bound."""
        self._alertnames = alertnames
        self._now = now
        self._lock = threading.Lock()
        self._shown: dict[tuple[str, str], _Shown] = {}
        self._results = Counter(
            "trainswitch_controller_onset_total",
            "Alerts whose onset was looked for, by what came of it.",
            ["result"],
            registry=registry,
        )
        for result in RESULTS:
            self._results.labels(result=result)
        registry.register(self)

    def count(self, result: Result) -> None:
        """Count what came of one alert."""
        self._results.labels(result=result).inc()

    def show(self, run: str, alertname: str, starts_at: float, suspects: Iterable[Mapping[str, Any]]) -> None:
        """Export the suspects of an incident, unless a newer one of the same run and alert is there."""
        if alertname not in self._alertnames:
            return
        with self._lock:
            known = self._shown.pop((run, alertname), None)
            new = _Shown(starts_at, tuple(suspects)[:SHOWN])
            self._shown[run, alertname] = known if known and known.starts_at > starts_at else new
            while len(self._shown) > MAX_INCIDENTS:
                self._shown.pop(next(iter(self._shown)))

    def restore(self, session: Session) -> None:
        """Export the incidents of the last `KEPT_S` that the journal holds."""
        query = (
            select(IncidentRecord)
            .where(IncidentRecord.starts_at > self._now() - KEPT_S)
            .order_by(IncidentRecord.id.desc())
            .limit(MAX_INCIDENTS)
        )
        for incident in reversed(session.scalars(query).all()):
            self.show(incident.run, incident.alertname, incident.starts_at, incident.suspects)

    def collect(self) -> Iterable[Metric]:
        """Yield the metric, for the client library."""
        family = GaugeMetricFamily(
            "trainswitch_controller_incident_suspect_lead_seconds",
            "Seconds before the newest alert of this name at which a suspect left its band; place 1 is the "
            "first suspect. Kept for a day.",
            labels=["run", "alertname", "place", "kind", "name"],
        )
        horizon = self._now() - KEPT_S
        with self._lock:
            self._shown = {key: one for key, one in self._shown.items() if one.starts_at > horizon}
            shown = sorted(self._shown.items())
        for (run, alertname), one in shown:
            for place, suspect in enumerate(one.suspects, start=1):
                # A batch is named by its steps, and step numbers are no labels.
                name = "" if suspect["kind"] == "batch" else suspect["name"]
                labels = [run, alertname, str(place), suspect["kind"], name]
                family.add_metric(labels, suspect["lead_seconds"])
        yield family
