"""One training run of the example's GPT, logged to CSV by trainswitch itself.

    python -m benchmarks.early_warning.training OPTIMIZER SCHEDULE SEED FOLDER

Writes FOLDER/<optimizer>-<schedule>-<seed>.csv, whole or not at all.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch

import trainswitch
from benchmarks.early_warning.breaks import loss_break
from benchmarks.early_warning.schedules import CREEP, MOST_STEPS, RECIPES, SCHEDULES, STEPS, run_name

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))

from gpt import GPT, GPTConfig, TextBatches, english_text

SHAPE = GPTConfig(layers=2, heads=4, width=48, context=32)
BATCH = 16
MAX_NORM = 1.0
_LOOK_EVERY = 25
_OPTIMIZERS: dict[str, Callable[[GPT, float], torch.optim.Optimizer]] = {
    "sgd": lambda model, rate: torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9),
    "adamw": lambda model, rate: torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.1),
}


def train(optimizer_name: str, schedule: str, seed: int, home: Path) -> Path:
    """Train one run below `home` and return its log.

    A creeping rate goes on until the loss has broken, the others for `STEPS` steps.
    """
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    recipe = RECIPES[optimizer_name]
    text, _ = english_text()
    model = GPT(SHAPE)
    optimizer = _OPTIMIZERS[optimizer_name](model, recipe.rate)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, SCHEDULES[schedule](recipe))
    batches = TextBatches(text, batch=BATCH, context=SHAPE.context, seed=seed)
    name = run_name(optimizer_name, schedule, seed)
    losses: list[float] = []
    with trainswitch.attach(model, optimizer, run=name, config=_settings(home)) as switch:
        for batch in switch.batches(batches):
            loss = model(batch[:, :-1], batch[:, 1:])
            loss.backward()
            switch.clip_grad_norm_(MAX_NORM)
            optimizer.step()
            optimizer.zero_grad()
            switch.step(loss, tokens=batch.numel())
            scheduler.step()
            losses.append(loss.item())
            if _is_over(losses, creeps=schedule == CREEP):
                break
    (log,) = (home / "csv" / name / "rank-0").glob("steps.*.csv")
    return log


def _is_over(losses: list[float], *, creeps: bool) -> bool:
    if not creeps:
        return len(losses) == STEPS
    return len(losses) == MOST_STEPS or (len(losses) % _LOOK_EVERY == 0 and loss_break(losses) is not None)


def _settings(home: Path) -> dict[str, object]:
    return {
        "server": {"port": 0, "linger_seconds": 0, "targets_dir": str(home / "targets")},
        "control": {"folder": str(home / "control")},
        "checkpoint": {"folder": str(home / "checkpoints"), "interval_steps": 0},
        "sampling": {"layers": 0, "weights": 0, "activations": 0, "checksum": 0},
        "sinks": {"csv": {"folder": str(home / "csv")}},
    }


def main() -> None:
    """Train the run that the command line names."""
    optimizer, schedule, seed, folder = sys.argv[1], sys.argv[2], int(sys.argv[3]), Path(sys.argv[4])
    with tempfile.TemporaryDirectory(prefix=".training-", dir=folder) as made:
        log = train(optimizer, schedule, seed, Path(made))
        log.replace(folder / f"{run_name(optimizer, schedule, seed)}.csv")


if __name__ == "__main__":
    main()
