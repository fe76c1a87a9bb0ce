"""The guard on several ranks: all skip the same steps, whoever has the bad gradient."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

WORKER = Path(__file__).with_name("guard_worker.py")
ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What became of each case on two ranks."""
    folder = tmp_path_factory.mktemp("guarded")
    started = []
    for rank in ("0", "1"):
        environment = {
            **os.environ,
            "RANK": rank,
            "LOCAL_RANK": rank,
            "WORLD_SIZE": "2",
            "OMP_NUM_THREADS": "1",
            "TRAINSWITCH_HOME": str(folder),
            "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
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


@pytest.mark.parametrize("case", ["sharded", "flat", "device"])
def test_a_bad_shard_of_one_rank_keeps_all_from_stepping(ranks: list[dict[str, Any]], case: str) -> None:
    """One reduction a step: FSDP2, FSDP1, fused kernels all skip on both, and only one has seen the NaN."""
    for number, rank in enumerate(ranks):
        found = rank[case]
        assert found["reduces"]
        assert found["guarded"]
        assert found["moved"] == [True, False, True]
        assert found["finite"]
        assert found["skipped"] == 1.0
        assert found["nonfinite"] == float(number == 1)
        assert found["lines"] == []


def test_the_skipped_step_leaves_no_trace(ranks: list[dict[str, Any]]) -> None:
    """The sharded weights are bit by bit those of a run that has never had the bad step."""
    whole = ranks[0]["reference"]["weights"]
    for index, parameter in enumerate(whole):
        parts = [row for rank in ranks for row in rank["sharded"]["weights"][index]]
        assert parts == parameter


def test_data_parallel_ranks_need_no_reduction(ranks: list[dict[str, Any]]) -> None:
    """Their gradients are the same, so they decide alike."""
    for rank in ranks:
        found = rank["replicated"]
        assert not found["reduces"]
        assert found["moved"] == [True, False, True]
        assert found["skipped"] == 1.0


def test_gradients_of_which_nothing_is_known_need_to_be_asked_for(ranks: list[dict[str, Any]]) -> None:
    """A rank that skipped alone would leave the others: auto is off with one line, on reduces."""
    for rank in ranks:
        auto, on = rank["unknown auto"], rank["unknown on"]
        assert not auto["guarded"]
        assert len(auto["lines"]) == 1
        assert "cannot tell whether gradients are the same on all ranks" in auto["lines"][0]
        assert auto["moved"] == [True, True, True]
        assert on["reduces"]
        assert on["moved"] == [True, False, True]


def test_a_rank_that_cannot_look_follows_the_others(ranks: list[dict[str, Any]]) -> None:
    """It still takes part in the reduction: staying away would hang the other ranks."""
    assert not ranks[0]["blind"]["guarded"]
    assert ranks[1]["blind"]["guarded"]
    assert len(ranks[0]["blind"]["lines"]) == 1
    assert "cannot look" in ranks[0]["blind"]["lines"][0]
    for rank in ranks:
        assert rank["blind"]["moved"] == [True, False, True]
        assert rank["blind"]["skipped"] == 1.0


def test_a_guard_on_one_rank_only_is_given_up(ranks: list[dict[str, Any]]) -> None:
    """Where a rank has no monitor nothing is reduced, so nothing hangs; the line names the rank."""
    found = ranks[0]["alone"]
    assert not found["guarded"]
    assert found["moved"] == [True, True, True]
    assert "there is none on rank 1" in found["lines"][0]
