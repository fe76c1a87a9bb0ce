"""Alerts that the driver makes up, and delivers as Alertmanager does."""

from __future__ import annotations

import time

from benchmarks.chaos.journal import FINAL, JournaledCommand
from benchmarks.chaos.plan import Plan
from benchmarks.chaos.sender import Episode, Message
from benchmarks.chaos.world import World


class MadeUpTrouble:
    """What the plan of a round says, by the world's sender."""

    chaos_s = 1.6
    calm_within_s = 25.0

    def __init__(self, world: World, plan: Plan, run: str) -> None:
        self.unanswered: list[str] = []
        """None: what was not answered is found by `must_act`."""
        self.episodes: list[Episode] = []
        self._sender = world.sender
        began = time.monotonic()
        now = time.time()
        old = list(world.sender.taken)
        for planned in plan.episodes:
            episode = Episode(planned.alertname, run, now + planned.begins)
            self.episodes.append(episode)
            for status, moments in (("firing", planned.firing), ("resolved", planned.resolved)):
                for moment in moments:
                    self._sender.send(Message(episode, status), at=began + moment)
        for number, moment in enumerate(plan.replays):
            if old:
                replayed = old[(plan.number * 7919 + number * 104729) % len(old)]
                self._sender.send(replayed, at=began + moment)

    def turn(self, now: float) -> None:
        """Do nothing: the sender has its appointments."""

    def settle(self, commands: list[JournaledCommand]) -> bool:
        """End the alerts that were answered, pauses before others; say whether all have ended."""
        if not self._sender.idle():
            return False
        acted = {one.alertname for one in commands if one.state in FINAL}
        lasting = [one for one in self.episodes if one.resolving_since is None]
        for episode in lasting:
            if episode.alertname == "ChaosHold" and "ChaosHold" in acted:
                self._resolve(episode)
        waits = any(one.must_act and one.alertname not in acted for one in lasting)
        if waits or self._waits_for_rung(commands):
            return False
        for episode in lasting:
            self._resolve(episode)
        return not lasting

    def _waits_for_rung(self, commands: list[JournaledCommand]) -> bool:
        """Whether an alert that lasts is still to take its second rung."""
        mine = [one for one in commands if one.alertname == "ChaosLasting"]
        episodes = [one for one in self.episodes if one.alertname == "ChaosLasting"]
        return (
            len(episodes) == 1
            and episodes[0].resolving_since is None
            and any(one.rung == 1 and one.state == "applied" for one in mine)
            and not any(one.rung == 2 and one.state in FINAL for one in mine)
        )

    def _resolve(self, episode: Episode) -> None:
        if episode.resolving_since is None:
            episode.resolving_since = time.monotonic()
            self._sender.send(Message(episode, "resolved"), at=time.monotonic())
