"""Actions of a run's own: register_action."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict, Field
from tests.exporter.conftest import MonitorFactory
from tests.exporter.probes.conftest import scraped
from tests.exporter.test_monitor import Loop, until

from trainswitch.errors import ActionRefused, ConfigError
from trainswitch.intervention.commands import ACTIONS


class Mix(BaseModel):
    """How the data is mixed."""

    model_config = ConfigDict(extra="forbid")

    source: str
    share: float = Field(ge=0.0, le=1.0)


@pytest.fixture
def loop(home: Path, new_monitor: MonitorFactory) -> Loop:
    """A run that saves nothing."""
    return Loop(home, new_monitor, checkpoint={"interval_steps": 0})


def ordered(loop: Loop, action: str, **params: Any) -> Any:
    """Command, and return the answer."""
    loop.command(action, params=params)
    return loop.answered()


def test_a_custom_action_is_carried_out_at_a_step_boundary(loop: Loop) -> None:
    """The handler gets the parsed parameters, and its sentence is the answer's."""
    taken: list[tuple[Mix, int]] = []

    def mix(params: Mix) -> str:
        taken.append((params, loop.monitor.current_step))
        return f"{params.source} is {params.share:.0%} of the data."

    loop.monitor.register_action("mix_data", mix, Mix)
    answer = ordered(loop, "mix_data", source="web", share="0.25")
    assert (answer.result, answer.detail) == ("applied", "web is 25% of the data.")
    assert taken == [(Mix(source="web", share=0.25), answer.step)]


@pytest.mark.parametrize(
    ("params", "word"),
    [({"source": "web"}, "share"), ({"source": "web", "share": 2}, "share"), ({"sorce": "web"}, "source")],
)
def test_parameters_that_do_not_fit_the_model_are_refused(
    loop: Loop, params: dict[str, Any], word: str
) -> None:
    """The handler is not called."""
    loop.monitor.register_action("mix_data", lambda _: pytest.fail("called"), Mix)
    answer = ordered(loop, "mix_data", **params)
    assert answer.result == "refused"
    assert word in answer.detail


def test_an_action_without_parameters_takes_none(loop: Loop) -> None:
    """Its handler gets None; a parameter is refused by name."""
    given: list[Any] = []
    loop.monitor.register_action("dump_batch", given.append)
    assert ordered(loop, "dump_batch").detail == "dump_batch was carried out."
    refused = ordered(loop, "dump_batch", where="here")
    assert refused.result == "refused"
    assert "'where'" in refused.detail
    assert given == [None]


def test_a_handler_that_raises_never_ends_the_training(loop: Loop) -> None:
    """The answer is failed with what was raised, shortened; ActionRefused is a refusal."""

    def fail(_: None) -> None:
        raise RuntimeError("no such source " + "x" * 5000)

    def refuse(_: None) -> None:
        raise ActionRefused("not while warming up.")

    loop.monitor.register_action("fails", fail)
    loop.monitor.register_action("refuses", refuse)
    failed = ordered(loop, "fails")
    assert failed.result == "failed"
    assert failed.detail.startswith("RuntimeError: no such source")
    assert len(failed.detail) == 1000
    refused = ordered(loop, "refuses")
    assert (refused.result, refused.detail) == ("refused", "not while warming up.")
    loop.train(1)


@pytest.mark.parametrize(
    ("returned", "detail"), [(True, "True"), ([1], "[1]"), ("", "odd was carried out."), ("a\udc80b", "a?b")]
)
def test_whatever_a_handler_returns_it_is_answered(loop: Loop, returned: Any, detail: str) -> None:
    """It has acted: what is no sentence, or no valid text, neither ends the training nor stays unanswered."""
    loop.monitor.register_action("odd", lambda _: returned)
    answer = ordered(loop, "odd")
    assert (answer.result, answer.detail) == ("applied", detail)


def test_it_is_listed_and_counted_by_name(loop: Loop) -> None:
    """status.json says what the trainer accepts; the counter's series exist before the first command."""
    loop.monitor.register_action("dump_batch", lambda _: None)
    loop.train(1)
    loop.monitor._channel.announce("running")
    until(lambda: "dump_batch" in loop.status().actions, "the action in status.json")
    assert loop.status().actions == (*ACTIONS, "dump_batch")
    for result in ("applied", "refused", "failed"):
        count = scraped(loop.monitor, "trainswitch_commands_total", action="dump_batch", result=result)
        assert count == 0.0
    ordered(loop, "dump_batch")
    assert scraped(loop.monitor, "trainswitch_commands_total", action="dump_batch", result="applied") == 1.0
    answer = ordered(loop, "dump_bach")
    assert "did you mean 'dump_batch'?" in answer.detail
    assert scraped(loop.monitor, "trainswitch_commands_total", action="unknown", result="refused") == 1.0


def test_the_longest_name_is_counted_whole(loop: Loop) -> None:
    """A name of 64 characters fits into a record."""
    name = "a" * 64
    loop.monitor.register_action(name, lambda _: None)
    assert ordered(loop, name).result == "applied"
    assert scraped(loop.monitor, "trainswitch_commands_total", action=name, result="applied") == 1.0


class Lax(BaseModel):
    """Ignores what it does not know."""

    share: float = 0.5


@pytest.mark.parametrize(
    ("name", "handler", "params", "why"),
    [
        ("Mix", print, None, "use 1 to 64"),
        ("pause", print, None, "built-in"),
        ("mix", "print", None, "give a function"),
        ("mix", print, Lax, "extra='forbid'"),
        ("mix", print, dict, "pydantic model"),
    ],
)
def test_what_cannot_be_registered(loop: Loop, name: str, handler: Any, params: Any, why: str) -> None:
    """A mistake of the script's is an error where it is made."""
    with pytest.raises(ConfigError, match=why):
        loop.monitor.register_action(name, handler, params)


def test_an_action_is_registered_once_and_before_the_first_step(loop: Loop) -> None:
    """Later, the ranks could no longer be sure to know the same actions."""
    loop.monitor.register_action("mix", print)
    with pytest.raises(ConfigError, match="registered already"):
        loop.monitor.register_action("mix", print)
    loop.train(1)
    with pytest.raises(ConfigError, match="before"):
        loop.monitor.register_action("late", print)
