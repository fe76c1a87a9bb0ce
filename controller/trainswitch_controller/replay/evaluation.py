"""All rules worked out over the whole time, each as soon as those that it reads are."""

from __future__ import annotations

import concurrent.futures
import graphlib
import threading
from collections.abc import Sequence

from trainswitch_controller.errors import ReplayError
from trainswitch_controller.replay.alerting import FiringSpan, play_alerts
from trainswitch_controller.replay.client import PrometheusClient
from trainswitch_controller.replay.model import Progress
from trainswitch_controller.replay.order import dependencies
from trainswitch_controller.replay.remote_write import Encoder
from trainswitch_controller.replay.rule_files import Rule
from trainswitch_controller.replay.series import LabelsClash, relabelled
from trainswitch_controller.replay.timeline import Grid, Timeline


class Evaluation:
    """Lets a Prometheus evaluate rules, and writes to it what its rule manager would have written.

    A rule is evaluated by range queries with its group's interval as the step, which is what the rule manager
    does instant by instant; what the rules around it read of it is stored before they are evaluated.
    """

    def __init__(self, url: str, timeline: Timeline, end: float, parallel: int) -> None:
        """Prepare for queries.

        Args:
            url: of a Prometheus that holds the scraped samples.
            timeline: of the replay.
            end: Unix milliseconds until which rules are evaluated.
            parallel: how many queries may run at once.
        """
        self._url = url
        self._timeline = timeline
        self._end = end
        self._parallel = parallel
        self._local = threading.local()
        self._clients: list[PrometheusClient] = []

    def run(self, rules: Sequence[Rule], progress: Progress) -> list[tuple[Rule, Grid, list[FiringSpan]]]:
        """Return, for each alerting rule, the grid of its evaluations and when its alerts fired.

        Raises:
            ReplayRulesError: rules read each other in a circle.
            ReplayError: a rule cannot be evaluated.
        """
        needed = dependencies(rules)
        read = {other for others in needed.values() for other in others}
        order = graphlib.TopologicalSorter(needed)
        order.prepare()
        found: list[tuple[Rule, Grid, list[FiringSpan]]] = []
        done = 0
        pool = concurrent.futures.ThreadPoolExecutor(self._parallel)
        running: dict[concurrent.futures.Future[list[FiringSpan]], Rule] = {}
        try:
            while order.is_active():
                for rule in order.get_ready():
                    running[pool.submit(self._evaluate, rule, rule in read)] = rule
                progress("evaluating rules", done, len(needed))
                finished, _ = concurrent.futures.wait(running, return_when=concurrent.futures.FIRST_COMPLETED)
                for future in finished:
                    rule = running.pop(future)
                    spans = future.result()
                    order.done(rule)
                    done += 1
                    if rule.is_alert:
                        found.append((rule, self._timeline.evaluations(rule.interval), spans))
        finally:
            # After an error or Ctrl-C nobody waits for the queries that run: they end with Prometheus.
            pool.shutdown(wait=not running, cancel_futures=True)
        progress("evaluating rules", done, len(needed))
        for client in self._clients:
            client.close()
        return found

    def _evaluate(self, rule: Rule, is_read: bool) -> list[FiringSpan]:
        grid = self._timeline.evaluations(rule.interval)
        count = grid.count_until(self._end)
        client = self._client()
        spans: list[FiringSpan] = []
        try:
            written = relabelled(client.query_grid(rule.expr, grid, count), rule.label)
        except (ReplayError, LabelsClash) as error:
            raise ReplayError(f"{rule.title} in {rule.source} cannot be evaluated: {error}") from error
        if rule.is_alert:
            spans, written = play_alerts(rule, written, grid, count)
        if is_read:
            client.write(Encoder(grid), written)
        return spans

    def _client(self) -> PrometheusClient:
        client: PrometheusClient | None = getattr(self._local, "client", None)
        if client is None:
            client = self._local.client = PrometheusClient(self._url)
            self._clients.append(client)
        return client
