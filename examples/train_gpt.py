"""Train a small GPT under trainswitch, and poison it at a chosen step if asked to.

The lines that a training loop gains are the ones with `switch`. Everything that has to do with `--fault` is
there so that there is something to see.

    python examples/train_gpt.py --run my-gpt --steps 300
    python examples/train_gpt.py --run my-gpt --steps 300 --fault nan-batch --fault-step 100
"""

from __future__ import annotations

import argparse
import json
import pathlib
import sys

import torch
from faults import FAULTS, Fault
from gpt import GPT, GPTConfig, TextBatches, english_text

import trainswitch


def main() -> int:
    """Train, and write the final validation loss to --result."""
    options = parse()
    torch.manual_seed(options.seed)
    torch.set_num_threads(options.threads)
    config = GPTConfig()
    training_text, validation_text = english_text()
    model = GPT(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.lr, weight_decay=0.1)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, Schedule(options.steps))
    batches = TextBatches(training_text, batch=options.batch, context=config.context, seed=options.seed)
    fault = Fault(options.fault, options.fault_step, model, scheduler, options.events)

    with trainswitch.attach(
        model,
        optimizer,
        run=options.run,
        scheduler=scheduler,
        config={
            "checkpoint": {"interval_steps": options.checkpoint_interval, "probation_steps": 40},
            "statistics": {"total_steps": options.steps},
        },
    ) as switch:
        for number, batch in enumerate(switch.batches(batches), start=1):
            with fault.at(number):
                loss = model(batch[:, :-1], batch[:, 1:])
                loss.backward()
                switch.clip_grad_norm_(1.0)
                optimizer.step()
            optimizer.zero_grad()
            scheduler.step()
            switch.step(loss, tokens=batch.numel(), samples=len(batch))
            if number % options.eval_interval == 0:
                with switch.evaluating():
                    switch.evaluate(val_loss=validate(model, validation_text, config))
            if switch.current_step >= options.steps:  # after a rollback, the lost steps are taken again
                break
        val_loss = validate(model, validation_text, config)
        switch.evaluate(val_loss=val_loss)

    print(f"{options.run}: validation loss {val_loss:.4f} after {switch.current_step} steps", file=sys.stderr)
    if options.result:
        options.result.write_text(json.dumps({"val_loss": val_loss, "steps": switch.current_step}))
    return 0


class Schedule:
    """Linear warm-up, then cosine decay to a tenth; a factor on the learning rate."""

    def __init__(self, steps: int) -> None:
        self._warmup = max(1, steps // 20)
        self._steps = steps

    def __call__(self, step: int) -> float:
        """Return the factor at `step`, counted from 0."""
        warm = min(1.0, (step + 1) / self._warmup)
        done = min(1.0, step / self._steps)
        return warm * (0.55 + 0.45 * float(torch.cos(torch.tensor(done * torch.pi))))


@torch.no_grad()
def validate(model: GPT, text: torch.Tensor, config: GPTConfig) -> float:
    """Return the mean loss over the same 8 batches of 32 every time."""
    batches = TextBatches(text, batch=32, context=config.context, seed=1, length=8)
    return sum(float(model(batch[:, :-1], batch[:, 1:])) for batch in batches) / 8


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--run", default="gpt-demo", help="name of the run (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1, help="CPU threads of torch (default: %(default)s)")
    parser.add_argument("--eval-interval", type=int, default=100)
    parser.add_argument("--checkpoint-interval", type=int, default=20)
    parser.add_argument("--fault", choices=FAULTS, default="none")
    parser.add_argument("--fault-step", type=int, default=240)
    parser.add_argument("--events", type=pathlib.Path, help="file that gets the time of the fault as JSON")
    parser.add_argument(
        "--result", type=pathlib.Path, help="file that gets the final validation loss as JSON"
    )
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
