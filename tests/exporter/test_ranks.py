"""A run of several ranks is several targets."""

from __future__ import annotations

import urllib.error
from pathlib import Path

import pytest
from tests.exporter.conftest import sample
from tests.exporter.torchrun import LONGEST_SECONDS, eventually, scrape, targets, torchrun

RANKS = 4


def test_four_ranks_serve_four_targets_that_disappear_at_the_end(home: Path) -> None:
    """Under torchrun each rank registers, serves its own samples, and withdraws when the run ends."""
    with torchrun(RANKS, "train", home) as process:

        def all_registered() -> dict[int, str] | None:
            found = targets(home)
            return found if len(found) == RANKS else None

        registered = eventually("four targets", all_registered, process, home)
        assert len(set(registered.values())) == RANKS, "each rank has a port of its own"
        for rank, address in registered.items():

            def stepping(address: str = address) -> bytes | None:
                text = scrape(address)
                return text if (sample(text, "train_steps_total") or 0.0) > 1.0 else None

            text = eventually(f"steps of rank {rank}", stepping, process, home)
            assert sample(text, "train_world_size") == RANKS
            assert sample(text, "train_loss") == 1.0 + rank
            assert f'rank="{rank}"'.encode() in text
        (home / "end").touch()
        assert process.wait(timeout=LONGEST_SECONDS) == 0
    assert targets(home) == {}
    assert len(list((home / "targets").glob("ranks.*.json"))) == RANKS, "emptied, not removed"
    for address in registered.values():
        with pytest.raises(urllib.error.URLError):
            scrape(address)
