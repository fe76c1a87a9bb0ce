"""Streaks: the level that several values in a row all reached, for rules about "n steps in a row".

The smallest of n values is above a limit exactly if all n are. So the running minimum over n steps, and of
that the largest in a while, tells PromQL whether n steps in a row lay above *any* limit, however many steps a
scrape does not see: the limit stays in the rule. Mirrored, the smallest running maximum does the same for
values below a limit.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

Side = Literal["upper", "lower"]
"""``upper``: what a streak reached at least, to be compared with >; ``lower``: at most, with <."""
Unit = Literal["evaluations", "epochs"]
"""What a streak of evaluations is counted in."""

STREAK_STEPS = (1, 2, 3, 4, 5, 10, 20, 50, 100)
"""Lengths of the streaks of steps."""
STREAK_EVALUATIONS = (2, 3, 5, 10)
"""Lengths of the streaks of evaluations, and of epochs; a streak of one is the evaluation itself."""
HOLD_SECONDS = 30.0
"""How long a streak of steps stays visible: longer than two scrapes at the usual intervals."""

_BIN_SECONDS = 1.0
_PENDING = 512
_FEW = 8
"""Values up to which each streak is looked at by itself: no pass over the values before is worth it."""


class StepStreaks:
    """Streaks of one value per step; worked out in batches, which cost a tenth of what single steps would.

    A NaN ends every streak, as it is neither above nor below anything; an infinite value does not.
    """

    def __init__(self) -> None:
        """Begin without values."""
        self._tail: list[float] = []
        self._pending: list[float] = []
        self._newest = -math.inf
        self._bins: deque[_Bin] = deque()

    def update(self, value: float, time: float) -> None:
        """Take a step's value; `time` is when the step ended, in seconds of any clock."""
        self._pending.append(value)
        self._newest = time
        if len(self._pending) >= _PENDING:
            self._work_off()

    def interrupt(self) -> None:
        """End all streaks: what comes next does not follow what came before, as after a rollback."""
        self._work_off()
        self._tail.clear()

    def levels(self) -> dict[Side, list[float]]:
        """Return the level of each length of `STREAK_STEPS`, over the last `HOLD_SECONDS` and the last step.

        Infinite where there was no streak of that length.
        """
        self._work_off()
        while self._bins and self._bins[0].ends < self._newest - HOLD_SECONDS:
            self._bins.popleft()
        return {
            "upper": [max(column) for column in zip(*(one.upper for one in self._bins), strict=True)],
            "lower": [min(column) for column in zip(*(one.lower for one in self._bins), strict=True)],
        }

    def _work_off(self) -> None:
        if not self._pending:
            return
        values = self._tail + self._pending
        fresh = len(self._pending)
        broken = math.isnan(sum(values))  # or an infinity and its opposite, which does no harm
        few = fresh <= _FEW
        upper = _without_nan(values, -math.inf) if broken else values
        lower = _without_nan(values, math.inf) if broken else values
        levels: dict[Side, list[float]] = {
            "upper": _direct(upper, fresh, min, max, -math.inf) if few else _highest(upper, fresh),
            "lower": _direct(lower, fresh, max, min, math.inf) if few else _lowest(lower, fresh),
        }
        self._tail = values[-(STREAK_STEPS[-1] - 1) :]
        self._pending = []
        last = self._bins[-1] if self._bins else None
        if last is not None and self._newest - last.begins < _BIN_SECONDS:
            self._bins[-1] = _Bin(
                last.begins,
                self._newest,
                list(map(max, last.upper, levels["upper"])),
                list(map(min, last.lower, levels["lower"])),
            )
        else:
            self._bins.append(_Bin(self._newest, self._newest, levels["upper"], levels["lower"]))


class _Bin(NamedTuple):
    """The levels of the steps of about a second."""

    begins: float
    ends: float
    upper: list[float]
    lower: list[float]


def _without_nan(values: Sequence[float], instead: float) -> Sequence[float]:
    return [instead if value != value else value for value in values]


def _direct(
    values: Sequence[float],
    fresh: int,
    within: Callable[[Sequence[float]], float],
    among: Callable[[Sequence[float]], float],
    none: float,
) -> list[float]:
    """Return, for each length, the best (`among`) of the worst (`within`) of the newest streaks."""
    found = []
    n = len(values)
    for length in STREAK_STEPS:
        if n < length:
            found.append(none)
            continue
        ends = range(max(length, n - fresh + 1), n + 1)
        if length <= fresh:
            found.append(among([within(values[end - length : end]) for end in ends]))
            continue
        # What all these streaks have in common is looked at once.
        first, last = n - length, ends[0]
        common = within(values[first:last])
        found.append(
            among([within((common, *values[end - length : first], *values[last:end])) for end in ends])
        )
    return found


# The worst value of a streak follows from those of two shorter ones that overlap or touch, so all lengths
# together take about one pass over the values for each. Twice the same code, because a comparison in a list
# comprehension takes a third of what a call of min or max takes, and this runs in the trainer's process.


def _highest(values: Sequence[float], fresh: int) -> list[float]:
    """Return, for each length, the highest level that a streak ending in the last `fresh` values reached."""
    found, length, running = [], 1, values
    for wanted in STREAK_STEPS:
        while length < wanted:
            shift = min(length, wanted - length)
            running = [
                min(early, late) for late, early in zip(running[shift:], running[:-shift], strict=True)
            ]
            length += shift
        found.append(max(running[-fresh:], default=-math.inf))
    return found


def _lowest(values: Sequence[float], fresh: int) -> list[float]:
    """Return, for each length, the lowest level that a streak ending in the last `fresh` values kept to."""
    found, length, running = [], 1, values
    for wanted in STREAK_STEPS:
        while length < wanted:
            shift = min(length, wanted - length)
            running = [
                max(early, late) for late, early in zip(running[shift:], running[:-shift], strict=True)
            ]
            length += shift
        found.append(min(running[-fresh:], default=math.inf))
    return found


class EvaluationStreaks:
    """The newest streaks of one evaluation metric, counted in evaluations and in epochs."""

    def __init__(self) -> None:
        """Begin without evaluations."""
        self._evaluations: deque[float] = deque(maxlen=STREAK_EVALUATIONS[-1])
        self._epochs: deque[float] = deque(maxlen=STREAK_EVALUATIONS[-1])
        self._epoch: int | None = None

    def update(self, value: float, epoch: float | None) -> None:
        """Take an evaluation; `epoch` is what the loop called the epoch it belongs to, None if nothing.

        Part of an epoch belongs to the epoch that it is part of: 1.5 to the one that ends with 2. Without a
        known epoch, each evaluation counts as one. A value that is not finite is left out.
        """
        if not math.isfinite(value):
            return
        number = math.ceil(epoch) if epoch is not None and math.isfinite(epoch) else None
        if self._epochs and number is not None and number == self._epoch:
            self._epochs[-1] = value
        else:
            self._epochs.append(value)
        self._epoch = number
        self._evaluations.append(value)

    def levels(self) -> dict[tuple[Side, Unit, int], float]:
        """Return the level of each (side, unit, length), where there have been so many.

        The value of an epoch is its newest evaluation.
        """
        found: dict[tuple[Side, Unit, int], float] = {}
        counted: tuple[tuple[Unit, deque[float]], ...] = (
            ("evaluations", self._evaluations),
            ("epochs", self._epochs),
        )
        for unit, values in counted:
            for length in STREAK_EVALUATIONS:
                if len(values) >= length:
                    newest = list(values)[-length:]
                    found["upper", unit, length] = min(newest)
                    found["lower", unit, length] = max(newest)
        return found

    def state_dict(self) -> dict[str, Any]:
        """Return the state: the newest values, the newest epochs' values, and the newest epoch."""
        return {
            "evaluations": list(self._evaluations),
            "epochs": list(self._epochs),
            "epoch": self._epoch,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what `state_dict` returned."""
        self._evaluations.extend(map(float, state["evaluations"]))
        self._epochs.extend(map(float, state["epochs"]))
        self._epoch = None if state["epoch"] is None else int(state["epoch"])
