"""Checkpoints of a trainer that is killed at any instant."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.exporter.intervention import checkpoint_victim

ROOT = Path(__file__).parents[3]
ROUNDS = 32


def test_a_kill_at_any_instant_leaves_only_whole_checkpoints(tmp_path: Path) -> None:
    """After each of 32 kills during saves, replacements, rotation and marking, nothing is torn.

    The last checkpoint that was said to be durable is there and whole, leftovers are tidied up, a stable one
    is left for the next session to go on from, and the folder does not grow.
    """
    seed = int.from_bytes(os.urandom(2), "big")
    command = [sys.executable, checkpoint_victim.__file__, str(tmp_path), str(ROUNDS), str(seed)]
    done = subprocess.run(
        command,
        check=False,
        capture_output=True,
        timeout=100,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr.decode()[-4000:]
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(found) == ROUNDS
    had_stable = False
    for number, look in enumerate(found):
        where = f"seed {seed}, round {number}: {look}"
        assert look["problems"] == look["broken"] == look["others"] == [], where
        assert look["lost"] is None, where
        assert look["entries"] <= 2 + 3 + 2 + 1, where  # one more where rotation was killed
        assert look["stable"] or not had_stable, where
        had_stable = had_stable or bool(look["stable"])
    assert had_stable
