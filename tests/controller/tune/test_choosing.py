"""Which of the measured levels become limits."""

from __future__ import annotations

from trainswitch_controller.tune.choosing import Levels, choose, looser
from trainswitch_controller.tune.judging import Measure, Severity, Slot
from trainswitch_controller.tune.labels import Trouble

LOSS = {severity: Slot("loss", severity, None) for severity in ("critical", "warning")}
NORM = {severity: Slot("grad_norm", severity, None) for severity in ("critical", "warning")}
RATIO = Slot("loss_ratio", "warning", None)


def levels(*costs: int, caught: tuple[int, ...] = ()) -> list[Measure]:
    """Return measures with so many false alarms and caught troubles, from tight to loose."""
    found = caught or (0,) * len(costs)
    return [
        Measure(cost, frozenset(Trouble("a", number, number) for number in range(count)))
        for cost, count in zip(costs, found, strict=True)
    ]


def chosen(measured: Levels, budget: dict[Severity, int], margin: int = 0) -> dict[Slot, int]:
    """Choose where all slots have their margin from the same level on."""
    return choose(measured, budget, dict.fromkeys(measured, margin))


def allowed(critical: int, warning: int) -> dict[Severity, int]:
    """Return a budget."""
    return {"critical": critical, "warning": warning}


def test_what_catches_most_within_the_budget_is_chosen() -> None:
    """A level over the budget is no choice, however much it catches."""
    found = chosen({RATIO: levels(9, 3, 1, 0, caught=(5, 4, 4, 1))}, allowed(0, 5))
    assert found == {RATIO: 2}


def test_the_budget_is_not_spent_for_nothing() -> None:
    """Where nothing more is caught, the level without false alarms is chosen, the tightest of them."""
    assert chosen({RATIO: levels(4, 0, 0, 0)}, allowed(10, 10)) == {RATIO: 1}


def test_of_equals_the_tightest_with_a_margin_is_chosen() -> None:
    """One without is worth it only if it meets more, or if all others cost more."""
    assert chosen({RATIO: levels(0, 0, 0, 0)}, allowed(0, 0), margin=2) == {RATIO: 2}
    assert chosen({RATIO: levels(0, 0, 0, 0, caught=(1, 1, 0, 0))}, allowed(0, 0), margin=2) == {RATIO: 0}


def test_limits_share_a_budget() -> None:
    """The dearest gives way first."""
    found = chosen(
        {RATIO: levels(4, 1, 0, caught=(3, 2, 0)), LOSS["warning"]: levels(2, 0, caught=(2, 0))},
        allowed(0, 5),
    )
    assert found == {RATIO: 1, LOSS["warning"]: 0}


def test_a_critical_limit_is_never_tighter_than_the_warning() -> None:
    """It warns, too, of a single step: a tighter one would cost warnings that the budget does not have."""
    found = chosen({LOSS["critical"]: levels(0, 0, 0), LOSS["warning"]: levels(9, 2, 0)}, allowed(1, 1))
    assert found == {LOSS["critical"]: 2, LOSS["warning"]: 2}


def test_what_fits_into_no_budget_is_left_out() -> None:
    """Without a warning that fits there is no critical limit, either."""
    found = chosen(
        {
            LOSS["critical"]: levels(0, 0),
            LOSS["warning"]: levels(9, 7),
            NORM["critical"]: levels(3, 2),
            NORM["warning"]: levels(0, 0),
        },
        allowed(1, 1),
    )
    assert found == {NORM["warning"]: 0}


def test_loosening_takes_the_critical_limit_along() -> None:
    """The order of the two stays; what is loosest already is left out."""
    measured = {LOSS["critical"]: levels(0, 0, 0), LOSS["warning"]: levels(0, 0, 0)}
    both = looser({LOSS["critical"]: 0, LOSS["warning"]: 0}, measured, LOSS["warning"])
    assert both == {LOSS["critical"]: 1, LOSS["warning"]: 1}
    one = looser({LOSS["critical"]: 2, LOSS["warning"]: 0}, measured, LOSS["warning"])
    assert one == {LOSS["critical"]: 2, LOSS["warning"]: 1}
    alone = looser({LOSS["critical"]: 0, LOSS["warning"]: 0}, measured, LOSS["critical"])
    assert alone == {LOSS["critical"]: 1, LOSS["warning"]: 0}
    assert looser({LOSS["critical"]: 2, LOSS["warning"]: 2}, measured, LOSS["warning"]) == {}
