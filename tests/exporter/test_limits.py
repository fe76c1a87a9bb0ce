"""Limits and phases: which hold when, and which are refused."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.exporter.conftest import samples
from tests.exporter.metrics.test_aggregator import build, step

from trainswitch.config import load_config
from trainswitch.errors import ConfigError
from trainswitch.limits import PhaseConfig, Phases, limits_in
from trainswitch.metrics.aggregator import Aggregator
from trainswitch.recording.records import Kind

PHASES = [
    {"name": "warmup", "until_step": 100},
    {"name": "main", "until_fraction": 0.9},
    {"name": "decay"},
]
LIMITS = [
    {"signal": "grad_norm", "value": 5.0, "reason": "usual is 1"},
    {"signal": "grad_norm", "value": 50.0, "phase": "warmup", "steps": 10, "reason": "starts wild"},
    {"signal": "loss", "severity": "warning", "value": 4.0, "phase": "decay"},
]
SETTINGS: dict[str, Any] = {"phases": PHASES, "limits": LIMITS, "statistics": {"total_steps": 1000}}


def limits(aggregator: Aggregator) -> dict[str, float]:
    """Return what a scrape shows of limits and the phase, by the labels that matter."""
    found = {}
    for (name, labels), value in samples(aggregator.render()).items():
        of = dict(labels)
        if name == "train_phase" and value:
            found["phase " + of["phase"]] = value
        elif name in ("train_limit", "train_limit_steps"):
            found[f"{name} {of['signal']} {of['severity']}"] = value
        elif name == "train_limit_info" and value:
            found[f"reason {of['phase']}: {of['reason']}"] = value
    return found


WARMUP = {
    "phase warmup": 1,
    "train_limit grad_norm critical": 50,
    "train_limit_steps grad_norm critical": 10,
    "reason warmup: starts wild": 1,
}
MAIN = {"phase main": 1, "train_limit grad_norm critical": 5, "reason : usual is 1": 1}
DECAY = {
    **MAIN,
    "phase decay": 1,
    "train_limit loss warning": 4,
    "reason decay: ": 1,
}
del DECAY["phase main"]


def test_only_the_limits_of_the_present_phase_are_shown() -> None:
    """They change with the step that begins a phase, and go back with a rollback and with an earlier step."""
    ring, aggregator = build(**SETTINGS)
    assert limits(aggregator) == WARMUP
    for number, expected in ((100, WARMUP), (101, MAIN), (900, MAIN), (901, DECAY)):
        step(ring, number, 1.0)
        assert limits(aggregator) == expected, number
    ring.append(Kind.RESTORED, 50)
    assert limits(aggregator) == WARMUP
    step(ring, 901, 1.0)
    step(ring, 500, 1.0)
    assert limits(aggregator) == MAIN


def test_all_limits_and_their_reasons_can_be_looked_up() -> None:
    """Those of other phases have the value 0, so each phase's reasons are there from the start."""
    _, aggregator = build(**SETTINGS)
    found = [
        labels for (name, labels), _ in samples(aggregator.render()).items() if name == "train_limit_info"
    ]
    assert len(found) == len(LIMITS)


def test_a_resumed_run_begins_in_its_phase() -> None:
    """The limits are right before the first step of the session."""
    ring, _ = build(**SETTINGS)
    ring.meta["step"] = 950
    assert limits(Aggregator(ring.reader(), "1")) == DECAY


def test_a_run_without_phases_has_its_limits_always() -> None:
    """And no series about phases."""
    ring, aggregator = build(limits=[{"signal": "loss", "value": 3.0}])
    step(ring, 10_000, 1.0)
    assert limits(aggregator) == {"train_limit loss critical": 3.0, "reason : ": 1.0}


def test_the_expected_throughput_is_a_baseline() -> None:
    """It stands beside those of the warm-up."""
    _, aggregator = build(throughput={"baseline_samples_per_second": 12.5})
    labels = frozenset({("signal", "samples_per_second"), ("stat", "expected")})
    assert samples(aggregator.render())["train_baseline", labels] == 12.5


@given(st.lists(st.integers(1, 10_000), unique=True, max_size=6), st.integers(0, 20_000))
def test_every_step_is_in_the_first_phase_that_has_not_ended(ends: list[int], number: int) -> None:
    """The end of a phase belongs to it."""
    ends.sort()
    phases = [PhaseConfig(name=f"p{i}", until_step=end) for i, end in enumerate(ends)]
    phases.append(PhaseConfig(name="last"))
    expected = next((one.name for one in phases if one.until_step and number <= one.until_step), "last")
    assert Phases(phases, None).at(number) == expected


def test_the_configuration_gives_the_limits_of_a_phase() -> None:
    """A phase's own limit stands in place of the one that is of no phase."""
    config = load_config(SETTINGS)
    assert [limit.value for limit in limits_in("warmup", config.limits)] == [50.0]
    assert [limit.value for limit in limits_in("main", config.limits)] == [5.0]
    assert [limit.value for limit in limits_in("decay", config.limits)] == [5.0, 4.0]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"phases": [{"name": "a b"}]}, r"phases\.0\.name is not valid"),
        ({"phases": [{"name": "a", "until_step": 5}, {"name": "a"}]}, "names 'a' more than once"),
        ({"phases": [{"name": "a"}, {"name": "b"}]}, "phase 'a' needs either until_step or until_fraction"),
        ({"phases": [{"name": "a", "until_step": 5}]}, "phase 'a' is the last and lasts to the end"),
        (
            {"phases": [{"name": "a", "until_step": 5}, {"name": "b", "until_step": 5}, {"name": "c"}]},
            "phase 'b' would end at step 5, and 'a' before it at step 5",
        ),
        ({"phases": [{"name": "a", "until_fraction": 0.5}, {"name": "b"}]}, "set statistics.total_steps"),
        (
            {"phases": [{"name": "a", "until": 5}]},
            "'phases.0.until' is not a setting: did you mean 'phases.until",
        ),
        ({"limits": [{"signal": "loss", "value": 1, "phase": "main"}]}, "phase 'main', .* there are none"),
        (
            {"phases": [{"name": "a"}], "limits": [{"signal": "loss", "value": 1, "phase": "b"}]},
            "phase 'b', which is not in phases: use one of a",
        ),
        (
            {"phases": [{"name": "a"}], "limits": [{"signal": "loss", "value": 1, "phase": "a"}] * 2},
            "limits names loss upper critical more than once in phase 'a'",
        ),
        (
            {
                "phases": [{"name": "a"}],
                "limits": [{"signal": "loss", "value": 1, "phase": "a"}, {"signal": "loss", "value": 2}],
            },
            "every phase has a limit loss upper critical of its own",
        ),
        ({"limits": [{"signal": "loss_ratio", "value": 3}]}, "only warns.*add 'severity: warning'"),
        (
            {"limits": [{"signal": "learning_rate_unchanged_steps", "value": 3}]},
            "learning_rate_unchanged_steps only warns.*add 'severity: warning'",
        ),
        (
            {"limits": [{"signal": "loss", "value": 3, "severity": "warning", "steps": 5}]},
            "no effect on a warning",
        ),
        ({"limits": [{"signal": "loss", "value": 3, "reason": "x" * 201}]}, "reason is not valid"),
    ],
    ids=str,
)
def test_a_limit_or_phase_without_effect_is_refused(settings: dict[str, Any], message: str) -> None:
    """One sentence says which, and what to do."""
    with pytest.raises(ConfigError, match=message):
        load_config(settings)
