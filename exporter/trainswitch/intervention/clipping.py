"""GradientClip: the norm that gradients are clipped to by command, and for how long."""

from __future__ import annotations

import logging
from typing import Any, Protocol

from trainswitch.errors import ActionRefused
from trainswitch.intervention.commands import ClipGradientsParams

logger = logging.getLogger("trainswitch")


class Clipper(Protocol):
    """What clips; `ModelProbes`."""

    def limit(self, max_norm: float | None) -> None:
        """Clip all gradients to `max_norm` from the next step on; None ends it."""

    def clip_obstacle(self) -> str:
        """Return why `limit` cannot have an effect, for people; empty where it can."""


class GradientClip:
    """Says what `GradientNorm` has to clip to.

    A rollback leaves it as it is; `Monitor.restore` brings it back.
    """

    def __init__(self, clipper: Clipper | None) -> None:
        """Begin without a limit; `clipper` is None where nothing is attached."""
        self.max_norm: float | None = None
        """Largest L2 norm to leave; None for no limit."""
        self._clipper = clipper
        self._steps_left: int | None = None

    def check(self, params: ClipGradientsParams) -> None:
        """Try whether `act` can have an effect.

        Raises:
            ActionRefused: it cannot.
        """
        if params.steps != 0 and (obstacle := self._obstacle()):
            raise ActionRefused(obstacle)

    def act(self, params: ClipGradientsParams) -> str:
        """Clip from the next step on, or end it, and say so."""
        self._set(params.max_norm, params.steps)
        if self.max_norm is None:
            return "gradients are not clipped by command any more."
        lasting = "until that is changed" if params.steps is None else f"for {params.steps} steps"
        return f"gradients are clipped to a norm of {params.max_norm:g} from the next step on, {lasting}."

    def end_step(self) -> None:
        """Count a step."""
        if self._steps_left is not None:
            self._steps_left -= 1
            if self._steps_left == 0:
                self._set(None, None)

    def state(self) -> dict[str, Any] | None:
        """Return what a checkpoint holds of it."""
        return None if self.max_norm is None else {"max_norm": self.max_norm, "steps_left": self._steps_left}

    def restore(self, state: dict[str, Any] | None) -> None:
        """Take over what `state` returned; a checkpoint of an older version holds nothing."""
        if state is None:
            self._set(None, None)
        elif obstacle := self._obstacle():
            logger.warning("the checkpoint's clipping to %g has no effect: %s", state["max_norm"], obstacle)
        else:
            self._set(state["max_norm"], state["steps_left"])

    def _set(self, max_norm: float | None, steps: int | None) -> None:
        self.max_norm = None if steps == 0 else max_norm
        self._steps_left = None if steps == 0 else steps
        if self._clipper is not None:
            self._clipper.limit(self.max_norm)

    def _obstacle(self) -> str:
        if self._clipper is None:
            return "this run has no optimizer whose gradients could be clipped: attach one."
        return self._clipper.clip_obstacle()
