"""Killed anywhere, in any order: nothing is lost, nothing is carried out twice, nothing is only claimed."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks.chaos.campaign import Campaign, Result, play
from benchmarks.chaos.disk import small_disk
from benchmarks.chaos.plan import ACTING, FaultKind, draw


def _zeros(result: Result) -> None:
    found = result.findings
    assert (found.lost, found.doubled, found.unapplied, found.broken) == ([], [], [], [])
    print(f"{result.rounds} rounds, {found.applied} interventions: 0 lost, 0 doubled, 0 unapplied")


@pytest.mark.e2e
@pytest.mark.timeout(240)
def test_four_rounds(tmp_path: Path) -> None:
    """Four rounds, one of them with Prometheus and Alertmanager: three zeros."""
    result = play(tmp_path, Campaign(rounds=4, seed=1, stack_every=4), lambda *_: None)
    _zeros(result)
    assert (result.rounds, result.stack_rounds) == (4, 1)
    assert result.findings.applied >= 4  # something has happened
    assert sum(count for name, count in result.faults.items() if name.startswith("kill ")) > 2


@pytest.mark.chaos
@pytest.mark.timeout(3600)
def test_two_hundred_rounds(tmp_path: Path) -> None:
    """The bar."""
    result = play(tmp_path, Campaign(rounds=200, seed=1), lambda *_: None)
    _zeros(result)
    assert result.rounds == 200


def test_a_round_can_be_drawn_again() -> None:
    """The same seed and number are the same round; over many rounds everything that can happen is in one."""
    kinds: tuple[FaultKind, ...] = ("full", "read_only", "away")
    plans = [draw(3, number, whole_stack=False, folder_faults=kinds) for number in range(200)]
    assert plans == [draw(3, number, whole_stack=False, folder_faults=kinds) for number in range(200)]
    assert {fault.kind for plan in plans for fault in plan.faults} == {"kill", "stop", "clock", *kinds}
    assert {episode.alertname for plan in plans for episode in plan.episodes} == set(ACTING)


def test_each_fault_of_the_folder_is_felt_and_ends(tmp_path: Path) -> None:
    """Full, read-only and gone are what a writer meets, and afterwards everything is as before."""
    # An open file keeps a file system from being remounted, and a trainer has its lock open.
    with small_disk(tmp_path) as disk, (disk.control / ".lock").open("wb"):
        faults = [disk.take_away, disk.fill, disk.protect] if disk.mounted else [disk.take_away]
        for number, begin in enumerate(faults):
            begin()
            with pytest.raises(OSError, match=r"No such file|No space left|Read-only"):
                (disk.control / f"new-{number}").write_bytes(b"x" * 8192)
            disk.heal()
            (disk.control / f"then-{number}").write_bytes(b"x" * 8192)
            assert (disk.control / ".lock").exists()
        mounted = disk.mounted
    assert (tmp_path / "disk" / "control").exists() is not mounted
