"""Where the loss would be without the trouble: the course it had before, carried on."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

_FEWEST = 20
"""Points that a course is made from, at least."""


def forecast(steps: Sequence[float], losses: Sequence[float], at: float) -> float | None:
    """Return the loss that a run's course would have reached at step `at`; None where it had none yet.

    Losses fall about as a power of the step, so the line is fitted to their logarithms (Kaplan et al. 2020,
    arXiv:2001.08361); where a loss is not positive, to the losses over the steps. It is the median of the
    slopes between points of the first and of the second half (Theil 1950): a spike bends it not.

    Args:
        steps: step numbers; those below 1, and points whose loss is not finite, are left out.
        losses: the loss at each of them.
        at: step that is asked for, at least 1.
    """
    points = sorted(
        {
            step: loss
            for step, loss in zip(steps, losses, strict=True)
            if step >= 1.0 and math.isfinite(loss)
        }.items()
    )
    if len(points) < _FEWEST or at < 1.0:
        return None
    powers = all(loss > 0.0 for _, loss in points)
    curve = [(math.log(step), math.log(loss)) if powers else (step, loss) for step, loss in points]
    half = len(curve) // 2
    slope = statistics.median(
        (late[1] - early[1]) / (late[0] - early[0])
        for early, late in zip(curve[:half], curve[-half:], strict=True)
    )
    where = math.log(at) if powers else at
    level = statistics.median(loss + slope * (where - step) for step, loss in curve)
    return math.exp(level) if powers else level
