"""Control chart of a series: robust centre line and scale, deviation, and EWMA chart statistic."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from typing import Any, NamedTuple

WINSOR_SIGMAS = 3.0
"""Residuals are clipped at this many sigmas before they move the centre line or the scale."""
FLOOR = 1e-3
"""Sigma is never taken to be less than this share of the centre line: a flat series has no tight limits."""
_TINY = 1e-300
_STARTING_VALUES = 10


class Deviation(NamedTuple):
    """Where one value lies on the chart."""

    sigmas: float
    """Signed distance from the centre line as it was before this value, in sigmas."""
    chart: float
    """EWMA of the winsorised deviations over its own standard deviation."""
    recentered: bool
    """The centre line was moved to a new level at this value."""


class ControlChart:
    """Centre line and scale by EWMA of winsorised residuals, and Roberts' EWMA chart on top.

    For a finite value x with centre m and scale s: residual r = x - m, deviation
    z = r / max(s, FLOOR·abs(m)), clipped residual c = max(-3s, min(3s, r)); then m += a·c and
    s² += a·(c² - s²). The chart statistic is w = l·clip(z) + (1 - l)·w over its standard deviation
    sqrt(l / (2 - l) · (1 - (1 - l)^2t)).
    (S. W. Roberts, Control Chart Tests Based on Geometric Moving Averages, Technometrics 1(3), 1959.)

    Clipping keeps a spike from moving the limits, but each clipped value still widens sigma by some 7 % at a
    span of 100, and a dozen in a row would hide the very trouble that lasts. So from the second value in a
    row beyond ±3s on the same side, neither centre nor scale moves. The price is that a series which jumps
    to a new level and stays is outside for long; so after `span` such values in a row, the chart starts again
    from them and says so.
    """

    def __init__(self, span: int, chart_lambda: float) -> None:
        """Create an empty chart.

        Args:
            span: of the EWMAs behind centre and scale; their smoothing a is 2 / (span + 1).
            chart_lambda: smoothing l of the chart statistic.
        """
        self._alpha = 2.0 / (span + 1)
        self._lambda = chart_lambda
        self._span = span
        self.clear()

    def clear(self) -> None:
        """Forget everything."""
        self._outside: deque[float] = deque(maxlen=self._span)
        self._side = 0
        self.center = math.nan
        self.sigma = math.nan
        self._start: list[float] = []
        self._ewma = 0.0
        self._count = 0

    @property
    def ready(self) -> bool:
        """Whether there is a centre line yet."""
        return not math.isnan(self.center)

    def update(self, value: float) -> Deviation | None:
        """Take the next value; None while the chart has too few to judge it, and for non-finite ones."""
        if not math.isfinite(value):
            return None
        if not self.ready:
            self._start.append(value)
            if len(self._start) >= _STARTING_VALUES:
                self._begin(self._start)
            return None
        residual = value - self.center
        scale = self._scale()
        sigmas = residual / scale
        if not math.isfinite(sigmas):
            sigmas = math.copysign(1e300, residual)
        bounded = min(max(sigmas, -WINSOR_SIGMAS), WINSOR_SIGMAS)
        side = 0 if abs(sigmas) <= WINSOR_SIGMAS else int(math.copysign(1, sigmas))
        if side == 0 or side != self._side:
            clipped = bounded * scale
            self.center += self._alpha * clipped
            # The root of (1 - a)·s² + a·c², without squares that overflow or vanish.
            self.sigma = math.hypot(
                math.sqrt(1.0 - self._alpha) * self.sigma, math.sqrt(self._alpha) * clipped
            )
        self._count += 1
        self._ewma += self._lambda * (bounded - self._ewma)
        weight = self._lambda / (2.0 - self._lambda) * (1.0 - (1.0 - self._lambda) ** (2 * self._count))
        return Deviation(sigmas, self._ewma / math.sqrt(weight), self._recenter(value, side))

    def _scale(self) -> float:
        return max(self.sigma, FLOOR * abs(self.center), _TINY)

    def _begin(self, values: list[float]) -> None:
        """Take median and scaled median absolute deviation of `values` as centre and scale."""
        ordered = sorted(values)
        self.center = ordered[len(ordered) // 2]
        spread = sorted(abs(value - self.center) for value in values)
        self.sigma = min(1.4826 * spread[len(spread) // 2], 1e150)
        self._start = []
        self._ewma = 0.0
        self._count = 0

    def _recenter(self, value: float, side: int) -> bool:
        if side != self._side:
            self._outside.clear()
            self._side = side
        if side == 0:
            return False
        self._outside.append(value)
        if len(self._outside) < self._span:
            return False
        self._begin(list(self._outside))
        self._outside.clear()
        self._side = 0
        return True

    def state_dict(self) -> dict[str, Any]:
        """Return the state."""
        return {
            "center": self.center if self.ready else None,
            "sigma": self.sigma if self.ready else None,
            "start": list(self._start),
            "ewma": self._ewma,
            "count": self._count,
            "outside": list(self._outside),
            "side": self._side,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what `state_dict` returned."""
        self.center = math.nan if state["center"] is None else float(state["center"])
        self.sigma = math.nan if state["sigma"] is None else float(state["sigma"])
        self._start = [float(value) for value in state["start"]]
        self._ewma = float(state["ewma"])
        self._count = int(state["count"])
        self._outside = deque(map(float, state["outside"]), maxlen=self._span)
        self._side = int(state["side"])
