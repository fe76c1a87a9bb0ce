"""A process with several small training runs, each of which meets one fault at a random moment.

    python -m benchmarks.latency.trainers PREFIX COUNT SEED KIND STEP_SECONDS FIRST LAST

A line of JSON on standard output for each fault: run, step, and the time at which the faulty step ended.
The runs are paused by the switch; the process ends when its standard input is closed.
"""

from __future__ import annotations

import json
import math
import random
import sys
import threading
import time

import trainswitch


def train(run: str, kind: str, step_seconds: float, fault_after: float, seed: int) -> None:
    """Step until paused for good; the fault strikes `fault_after` seconds from now."""
    random_numbers = random.Random(seed)  # noqa: S311 - not a secret
    with trainswitch.attach(
        run=run, config={"server": {"port": 0, "linger_seconds": 0}, "statistics": {"warmup_steps": 50}}
    ) as switch:
        strike_at = time.monotonic() + fault_after
        struck = False
        while not switch.should_stop:
            time.sleep(step_seconds)
            due = time.monotonic() >= strike_at
            loss = math.nan if due and not struck and kind == "nan" else random_numbers.gauss(2.0, 0.05)
            norm = random_numbers.lognormvariate(0.0, 0.2) * (1000.0 if due and kind == "explosion" else 1.0)
            if due and not struck:
                struck = True
                # Printed before the step: step() may not return before the pause that follows ends.
                line = {"run": run, "step": switch.current_step + 1, "at": time.time()}
                print(json.dumps(line), flush=True)
            switch.step(loss, grad_norm=norm)


def main() -> None:
    """Start the runs, and wait for the end of standard input."""
    prefix, count, seed, kind = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    step_seconds, first, last = (float(argument) for argument in sys.argv[5:8])
    random_numbers = random.Random(seed)  # noqa: S311 - not a secret
    for number in range(count):
        fault_after = random_numbers.uniform(first, last)
        arguments = (f"{prefix}-{number}", kind, step_seconds, fault_after, seed * 1000 + number)
        threading.Thread(target=train, args=arguments, daemon=True).start()
    sys.stdin.read()


if __name__ == "__main__":
    main()
