"""The ``storm`` benchmark."""

from __future__ import annotations

import asyncio
import collections
import dataclasses
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.cores import confine
from benchmarks.storm.audit import Audit, audit, wait_until_settled
from benchmarks.storm.client import Answer, deliver
from benchmarks.storm.controller import Trainers, controller
from benchmarks.storm.deliveries import draw, run_names
from trainswitch_controller.cli.options import JsonOption
from trainswitch_controller.cli.output import Report, complain
from trainswitch_controller.journal import Journal
from trainswitch_controller.policy import load_policy

BAR_P99_S = 0.25
BAR_GROWTH_MIB = 16.0
_POLICY = Path(__file__).with_name("policy.yml")
_MIB = 1024 * 1024
_WARM = 0.2
"""Memory is compared from this share of the storm on: until then caches fill."""
_SAMPLES = 50


@dataclasses.dataclass(frozen=True)
class Storm:
    """What was measured."""

    answers: list[Answer]
    seconds: float
    controller_cores: float
    client_cores: float
    resident_mib: list[float]
    """Of the controller, at equal distances from the beginning of the storm to its end."""
    settled: bool
    """Whether every command was answered after the storm."""
    audit: Audit

    @property
    def statuses(self) -> dict[str, int]:
        """How many deliveries got which HTTP status; 0 is no answer."""
        return {str(status): count for status, count in self._counted()}

    def _counted(self) -> list[tuple[int, int]]:
        return sorted(collections.Counter(answer.status for answer in self.answers).items())

    @property
    def latency(self) -> dict[str, float]:
        """Seconds to the answer."""
        values = [answer.seconds for answer in self.answers]
        cuts = statistics.quantiles(values, n=100, method="inclusive")
        return {"p50": cuts[49], "p95": cuts[94], "p99": cuts[98], "max": max(values)}

    @property
    def growth_mib(self) -> float:
        """By how much the controller's memory grew once it was warm."""
        return max(self.resident_mib) - self.resident_mib[round(len(self.resident_mib) * _WARM)]

    @property
    def misses(self) -> list[str]:
        """Each bar that is missed, in words."""
        refused = sum(count for status, count in self.statuses.items() if status != "200")
        found = {
            f"{refused} deliveries were not answered with 200": refused > 0,
            f"journal and answers do not agree: {dataclasses.asdict(self.audit)}": not self.audit.agrees,
            "commands were still open half a minute after the storm": not self.settled,
            f"p99 is {self.latency['p99'] * 1000:.0f} ms, the limit {BAR_P99_S * 1000:.0f} ms": (
                self.latency["p99"] >= BAR_P99_S
            ),
            f"memory grew by {self.growth_mib:.1f} MiB, the limit is {BAR_GROWTH_MIB:.0f} MiB": (
                self.growth_mib > BAR_GROWTH_MIB
            ),
        }
        return [sentence for sentence, missed in found.items() if missed]


def run(
    webhooks: Annotated[int, typer.Option(min=100, help="How many, one alert each.")] = 10_000,
    connections: Annotated[int, typer.Option(min=1, help="How many deliver at the same time.")] = 32,
    runs: Annotated[
        int, typer.Option(min=1, help="Runs that the alerts are about, each with a trainer.")
    ] = 100,
    seed: Annotated[int, typer.Option(help="Of the order of the deliveries.")] = 1,
    cores: Annotated[
        int, typer.Option(min=1, help="Cores for controller, trainers and client together.")
    ] = 2,
    journal: Annotated[
        str | None,
        typer.Option(
            help="SQLAlchemy URL of an empty database to use; otherwise SQLite, as by default.",
            show_default=False,
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Deliver a storm of webhooks to a controller, and count what became of each.

    Bar: every one answered with 200, in the journal once, and what it led to carried out once; p99 < 250 ms;
    memory grows by at most 16 MiB once a fifth of the storm is over.
    """
    report = Report(as_json=as_json)
    confine(cores)
    with tempfile.TemporaryDirectory(prefix="trainswitch-storm-") as name:
        home = Path(name)
        storm = measure(
            home, journal or f"sqlite:///{home / 'journal.db'}", webhooks, connections, run_names(runs), seed
        )
    latency = storm.latency
    report.table(
        ("ms to the answer", "p50", "p95", "p99", "max"),
        [("webhook", *(f"{value * 1000:.0f}" for value in latency.values()))],
    )
    report.say(
        f"{webhooks} webhooks in {storm.seconds:.1f} s, {webhooks / storm.seconds:.0f} a second, over "
        f"{connections} connections; processor cores: controller {storm.controller_cores:.2f}, client "
        f"{storm.client_cores:.2f}."
    )
    report.say(
        f"Memory: {storm.resident_mib[0]:.0f} MiB before, {storm.resident_mib[-1]:.0f} MiB after; grown by "
        f"{storm.growth_mib:.1f} MiB once warm."
    )
    misses = storm.misses
    for sentence in misses:
        complain(f"the bar is missed: {sentence}.")
    report.result(_document(storm, misses, webhooks, connections, runs))
    if misses:
        raise typer.Exit(1)


def measure(
    home: Path, journal_url: str, webhooks: int, connections: int, runs: list[str], seed: int
) -> Storm:
    """Start trainers and a controller in `home`, storm it, and count."""
    trainers = Trainers(home / "control", runs)
    journal = Journal(journal_url)
    try:
        with controller(home, journal_url, _POLICY) as stormed:
            deliveries = draw(webhooks, len(runs), seed, time.time())
            resident = [stormed.resident_bytes()]
            every = max(1, webhooks // _SAMPLES)

            def sample(count: int) -> None:
                if count % every == 0:
                    resident.append(stormed.resident_bytes())

            used, own, begun = stormed.cpu_seconds(), time.process_time(), time.monotonic()
            answers = asyncio.run(deliver(deliveries, stormed.port, stormed.token, connections, sample))
            seconds = time.monotonic() - begun
            used, own = stormed.cpu_seconds() - used, time.process_time() - own
            settled = wait_until_settled(journal)
            carried_out = trainers.end()
        policy, _ = load_policy(_POLICY)
        found = journal.read(
            lambda session: audit(session, answers, carried_out, policy.budget.per_run.interventions)
        )
    finally:
        journal.close()
        trainers.kill()
    return Storm(
        answers=answers,
        seconds=seconds,
        controller_cores=used / seconds,
        client_cores=own / seconds,
        resident_mib=[size / _MIB for size in resident],
        settled=settled,
        audit=found,
    )


def _document(storm: Storm, misses: list[str], webhooks: int, connections: int, runs: int) -> dict[str, Any]:
    outcomes = collections.Counter(outcome for answer in storm.answers for outcome in answer.outcomes)
    return {
        "ok": not misses,
        "webhooks": webhooks,
        "connections": connections,
        "runs": runs,
        "cores": len(os.sched_getaffinity(0)),
        "bar": {"p99_s": BAR_P99_S, "growth_mib": BAR_GROWTH_MIB},
        "missed": misses,
        "statuses": storm.statuses,
        "outcomes": dict(sorted(outcomes.items())),
        "seconds": storm.seconds,
        "webhooks_per_second": webhooks / storm.seconds,
        "seconds_to_answer": storm.latency,
        "resident_mib": {
            "before": storm.resident_mib[0],
            "after": storm.resident_mib[-1],
            "growth": storm.growth_mib,
        },
        "cores_used": {"controller": storm.controller_cores, "client": storm.client_cores},
        "audit": dataclasses.asdict(storm.audit),
    }
