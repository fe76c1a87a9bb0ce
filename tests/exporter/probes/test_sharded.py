"""Sharded parameters: every rank exports its share, and the squares of all ranks add up to the whole."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

WORKER = Path(__file__).with_name("sharded_worker.py")
ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What two ranks of a training with DTensors export."""
    folder = tmp_path_factory.mktemp("sharded")
    started = []
    for rank in ("0", "1"):
        environment = {
            **os.environ,
            "RANK": rank,
            "LOCAL_RANK": rank,
            "WORLD_SIZE": "2",
            "OMP_NUM_THREADS": "1",
            "TRAINSWITCH_HOME": str(folder),
            "PYTHONPATH": str(ROOT),
        }
        command = [sys.executable, str(WORKER), str(folder / "store")]
        started.append(subprocess.Popen(command, env=environment, stdout=subprocess.PIPE))
    found = []
    try:
        for process in started:
            output, _ = process.communicate(timeout=100)
            assert process.returncode == 0
            found.append(json.loads(output))
    finally:
        for process in started:
            process.kill()
            process.wait()
    return found


def squares(ranks: list[dict[str, Any]], when: str, name: str) -> float:
    """The sum of the squares of one series over the ranks, as PromQL adds them up."""
    return math.fsum(rank[when][name] ** 2 for rank in ranks)


def test_the_ranks_squares_add_up_to_the_whole(ranks: list[dict[str, Any]]) -> None:
    """Shards count on their rank; what both ranks hold alike counts once, a DTensor or not."""
    gradients, weights = ranks[0]["gradients"], ranks[0]["weights"]
    total = math.fsum(rank["measured"]["train_grad_norm_squared"] for rank in ranks)
    assert total == pytest.approx(sum(gradients.values()), rel=1e-5)
    for layer in ("0", "1"):
        for name, truth in (("train_layer_grad_norm", gradients), ("train_layer_weight_norm", weights)):
            expected = sum(value for key, value in truth.items() if key.startswith(layer))
            assert squares(ranks, "measured", f"{name} {layer}") == pytest.approx(expected, rel=1e-5)


def test_a_norm_that_torch_worked_out_is_taken_by_shares(ranks: list[dict[str, Any]]) -> None:
    """Passing what torch's clipping returned for DTensors adds up, too, and waits for no other rank."""
    gradients = ranks[0]["gradients"]
    total = math.fsum(rank["passed"]["train_grad_norm_squared"] for rank in ranks)
    assert total == pytest.approx(4.0 * (gradients["0.weight"] + gradients["0.bias"]), rel=1e-5)


def test_clipping_measures_the_shares_and_clips_the_whole(ranks: list[dict[str, Any]]) -> None:
    """clip_grad_norm_() clips by the global norm, as torch does, and records each rank's share of it."""
    gradients = ranks[0]["gradients"]
    norm = gradients["0.weight"] + gradients["0.bias"]
    total = math.fsum(rank["clipped"]["train_grad_norm_squared"] for rank in ranks)
    assert total == pytest.approx(norm, rel=1e-5)
    assert ranks[0]["left"] == pytest.approx(gradients["0.weight"] / norm, rel=1e-4)


def test_a_commanded_norm_is_that_of_the_whole(ranks: list[dict[str, Any]]) -> None:
    """clip_gradients clips shards, replicas and plain gradients alike, by the norm of all ranks together."""
    assert [rank["limited"] for rank in ranks] == [pytest.approx(0.25, rel=1e-4)] * 2


def test_shards_take_no_part_in_the_checksum(ranks: list[dict[str, Any]]) -> None:
    """Shards differ by design; what both ranks hold is compared all the same."""
    assert ranks[0]["measured"]["train_weight_checksum"] == ranks[1]["measured"]["train_weight_checksum"]
