"""RateActions: what commands do with the learning rate."""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING

from trainswitch.errors import ActionRefused

if TYPE_CHECKING:
    from trainswitch.intervention.learning_rate import LearningRateScale

logger = logging.getLogger("trainswitch")


class RateActions:
    """Multiplies and sets the learning rate by the one factor that survives scheduler and rollback."""

    def __init__(self, scale: LearningRateScale | None) -> None:
        """Act on `scale`; None without an optimizer."""
        self._scale = scale

    @property
    def factor(self) -> float:
        """What the learning rates are multiplied by; 1.0 without an optimizer."""
        return self._scale.factor if self._scale is not None else 1.0

    def restore(self, factor: float) -> None:
        """Take over the factor of a checkpoint."""
        if self._scale is not None:
            self._scale.factor = factor
        elif factor != 1.0:
            logger.warning(
                "the checkpoint's learning-rate factor of %g has no optimizer to act on: attach one.", factor
            )

    def multiply(self, factor: float) -> str:
        """Multiply every group's learning rate, and say what came of it.

        Raises:
            ActionRefused: there is none that could be multiplied; nothing was changed.
        """
        scale = self._scalable()
        scale.multiply(factor)
        return f"learning rate multiplied by {factor:g}: now {_shown(scale)}."

    def set(self, value: float) -> str:
        """Make the largest learning rate `value`, the others in proportion, and say what came of it.

        Raises:
            ActionRefused: see `check_set`; nothing was changed.
        """
        scale = self._scalable()
        scale.factor = self._factor_for(value)
        return (
            f"learning rate set to {value:g}, which is {scale.factor:.4g} times the schedule's: "
            f"now {_shown(scale)}."
        )

    def lowers(self, value: float) -> bool:
        """Whether `set` would make the learning rate smaller than it is."""
        return self._factor_for(value) < self.factor

    def check_multiply(self) -> None:
        """Try whether `multiply` can have an effect.

        Raises:
            ActionRefused: it cannot.
        """
        self._scalable().multiply(1.0)

    def check_set(self, value: float) -> None:
        """Try whether `set` can have an effect.

        Raises:
            ActionRefused: there is no optimizer; or the learning rate is zero, or a tensor on a device, so
                that no factor is known to make it `value`.
        """
        self._scalable().multiply(1.0)
        self._factor_for(value)

    def _scalable(self) -> LearningRateScale:
        if self._scale is None:
            raise ActionRefused("this run has no optimizer whose learning rate could be changed: attach one.")
        return self._scale

    def _factor_for(self, value: float) -> float:
        rates = self._scalable().scheduled()
        if any(math.isnan(rate) for rate in rates):
            raise ActionRefused(
                "a learning rate is a tensor on a device, which is not read because training would wait for "
                "it: use reduce_lr, which need not know it."
            )
        largest = max(rates)
        if largest <= 0.0 or not math.isfinite(value / largest):
            raise ActionRefused(
                f"the schedule's learning rate is {largest:g} now, and no factor makes it {value:g}: set it "
                "at a step at which it is larger."
            )
        return value / largest


def _shown(scale: LearningRateScale) -> str:
    return ", ".join(f"{rate:.4g}" for rate in scale.effective())
