"""Where a loss broke, told by the losses alone and with hindsight: nothing here knows of any rule."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence

MEDIAN_OF = 5
SHARE_LOST = 0.5
HELD_FOR = 50


def loss_break(losses: Sequence[float]) -> int | None:
    """Return the row at which half of what was learned began to be lost for good; None where it was not.

    From that row on, for `HELD_FOR` rows at least, the median of the last `MEDIAN_OF` losses lies above the
    lowest such median so far by more than `SHARE_LOST` of the way back to the first one.

    - A median of five: one bad batch, or two, break nothing.
    - Half of the way that the run itself has come: neither a unit nor a scale of the noise enters, as they do
      in the rules. The whole way is an untrained model; nobody calls half of it noise.
    - Fifty rows in a row: a spike that heals is no break.

    Args:
        losses: one a row, in order; NaN counts as infinite.
    """
    numbers = [math.inf if math.isnan(loss) else loss for loss in losses]
    medians = [
        statistics.median(numbers[row - MEDIAN_OF : row]) for row in range(MEDIAN_OF, len(numbers) + 1)
    ]
    held = 0
    for number, (median, lowest) in enumerate(zip(medians, itertools.accumulate(medians, min), strict=True)):
        is_lost = median > lowest + SHARE_LOST * (medians[0] - lowest)
        held = held + 1 if is_lost else 0
        if held == HELD_FOR:
            return number - HELD_FOR + MEDIAN_OF
    return None
