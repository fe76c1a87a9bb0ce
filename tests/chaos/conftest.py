"""Long runs are for those who ask for them."""

from __future__ import annotations

import pytest


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave tests marked ``chaos`` out, unless the mark is asked for by name."""
    if "chaos" in config.getoption("markexpr"):
        return
    left_out = [item for item in items if item.get_closest_marker("chaos")]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]
