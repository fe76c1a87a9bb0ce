"""Fewer points that look the same: of each stretch its lowest and its highest value."""

from __future__ import annotations

import math
from collections.abc import Sequence


def envelope(
    rows: Sequence[int], values: Sequence[float | None], stretches: int
) -> tuple[list[int], list[float]]:
    """Return the finite values, or of each of so many equal stretches of rows the lowest and the highest.

    A spike of a single row stays, at its own row and height; what goes is what lies between two extremes.

    Args:
        rows: ascending.
        values: one for each row; None is absent.
        stretches: at least 1; twice as many points come back at most.
    """
    points = [
        (row, value)
        for row, value in zip(rows, values, strict=True)
        if value is not None and math.isfinite(value)
    ]
    if len(points) <= 2 * stretches:
        return [row for row, _ in points], [value for _, value in points]
    first = points[0][0]
    length = (points[-1][0] - first + 1) / stretches
    kept: dict[int, list[tuple[int, float]]] = {}
    for row, value in points:
        extremes = kept.setdefault(int((row - first) / length), [(row, value), (row, value)])
        if value < extremes[0][1]:
            extremes[0] = row, value
        elif value > extremes[1][1]:
            extremes[1] = row, value
    chosen = sorted({point for extremes in kept.values() for point in extremes})
    return [row for row, _ in chosen], [value for _, value in chosen]
