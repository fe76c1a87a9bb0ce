"""Runs of several ranks resume from one checkpoint on all ranks, or on none."""

from __future__ import annotations

from typing import Any

import pytest
from tests.exporter.distributed.test_agreement import Start, start

__all__ = ["start"]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("mode", ["resume", "resume_sharded", "resume_files"])
def test_all_ranks_resume_from_one_checkpoint_or_none_does(start: Start, mode: str) -> None:
    """All go on from the same stable step, bit by bit; whatever one rank cannot do, no rank does.

    With a process group and through files; with a model that all hold and one that is spread over them.
    """
    run = start(mode, 2)
    assert run.exit_code() == 0, (run.home / "log").read_text()[-4000:]

    def said(key: str) -> list[Any]:
        return [next(fact[key] for fact in run.diary(rank) if key in fact) for rank in (0, 1)]

    assert said("first") == [None, None]
    assert said("restored") == [30, 30]
    if mode == "resume_files":  # each rank trains by itself, and rank 0's model is the run's
        restored = said("restored_weights")
        assert restored[0] == restored[1]
        assert said("weights")[0] == said("bare_weights")[0]
    else:
        assert said("weights") == said("bare_weights")
    assert all("restore() comes too late" in sentence for sentence in said("late"))
    for sentence in said("elsewhere"):
        assert "Rank 1: cannot read" in sentence
        assert "No rank has changed anything" in sentence
    for sentence in said("unlike"):
        assert "Rank 1: it asks for step 50 and rank 0 for 40" in sentence
    assert all("no checkpoint of step 7" in sentence for sentence in said("absent"))
    (half,) = [fact["half"] for fact in run.diary(0) if "half" in fact]
    assert "rank 1" in half
    assert "call it on every rank" in half
    assert all(fact["unchanged"] for rank in (0, 1) for fact in run.diary(rank) if "unchanged" in fact)
