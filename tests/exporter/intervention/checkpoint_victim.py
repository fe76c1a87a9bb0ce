"""Saves checkpoints until it is killed, again and again: ``checkpoint_victim.py FOLDER ROUNDS SEED``.

One process imports PyTorch and forks the victims, because importing it would be most of their life. After
each kill it looks at what is left, and prints what it found as a line of JSON.
"""

from __future__ import annotations

import io
import json
import os
import random
import signal
import sys
import time
from pathlib import Path

import torch

from trainswitch.errors import CheckpointError
from trainswitch.intervention.checkpoints import CheckpointStore

RUN = "victim"
NUMBERS = 20_000


def live(folder: Path, durable: int, seed: int) -> None:
    """Train from what the last victim left: save, become stable, roll back; say which saves are durable."""
    dice = random.Random(seed)
    store = CheckpointStore(folder, RUN, keep=2, probation_steps=3, max_pinned=2)
    try:
        step = store.load()[1].step
        store.rolled_back(step)
    except CheckpointError:
        step = 0
    while True:
        step += 1
        store.advance(step)
        # Few steps, so that they are saved again and again, over older ones.
        pin, suspect = dice.random() < 0.1, dice.random() < 0.2
        captured = {"step": step, "weight": torch.full((NUMBERS,), float(step))}
        os.write(durable, f"+{step}\n".encode())
        store.save(captured, step, kind="suspect" if suspect else "probation", pin=pin, wait=True)
        os.write(durable, f"{step}\n".encode())
        if dice.random() < 0.15:
            store.trouble(step)
            try:
                step = store.load()[1].step
                store.rolled_back(step)
            except CheckpointError:
                step = 0


def look(folder: Path, said: list[str]) -> dict[str, object]:
    """Open the store as the next session does, and load everything.

    Args:
        folder: of the checkpoints.
        said: what the victim said, in order: ``+12`` before a save, ``12`` when it was durable.
    """
    store = CheckpointStore(folder, RUN, keep=2, probation_steps=3, max_pinned=2)
    broken = []
    for entry in store.entries():
        captured = torch.load(Path(entry.path) / "state.pt", weights_only=True)
        if captured["step"] != entry.step or not bool((captured["weight"] == entry.step).all()):
            broken.append(entry.path)
    steps = [entry.step for entry in store.entries()]
    names = [path.name for path in (folder / RUN).iterdir()]
    last = next((int(line) for line in reversed(said) if line[0] != "+"), None)
    # Killed between a save and its word: rotation may have let the one before go, since there is a newer one.
    unsaid = said[-1][0] == "+" and steps[-1:] == [int(said[-1])]
    found: dict[str, object] = {
        "problems": [str(problem) for problem in store.take_problems()],
        "broken": broken,
        "lost": last if last is not None and last not in steps and not unsaid else None,
        "entries": len(steps),
        "stable": sum(entry.kind == "stable" for entry in store.entries()),
        "others": [name for name in names if name.startswith(".") or "corrupt" in name],
    }
    store.close()
    return found


def _saved() -> io.BytesIO:
    buffer = io.BytesIO()
    torch.save({"weight": torch.ones(1)}, buffer)
    buffer.seek(0)
    return buffer


def main() -> None:
    """Let victims live and die."""
    folder, rounds, seed = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(1)
    dice = random.Random(seed)
    torch.load(_saved(), weights_only=True)  # imports what each victim would import anew
    for number in range(rounds):
        readable, writable = os.pipe()
        victim = os.fork()
        if victim == 0:
            os.close(readable)
            live(folder, writable, seed + number)
        os.close(writable)
        with os.fdopen(readable) as durable:
            begun, first = durable.readline().strip(), durable.readline().strip()  # one save is whole
            time.sleep(dice.uniform(0.0, 0.03))
            os.kill(victim, signal.SIGKILL)
            os.waitpid(victim, 0)
            said = [begun, first, *durable.read().splitlines()]
        print(json.dumps(look(folder, said)), flush=True)


if __name__ == "__main__":
    main()
