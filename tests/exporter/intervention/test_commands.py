"""Run names, actions and their parameters; the control files' reader against arbitrary content."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from trainswitch.errors import CommandError, ControlFileError, RunNameError
from trainswitch.intervention.commands import (
    ACTIONS,
    check_action,
    check_action_name,
    check_run_name,
    checked_params,
)
from trainswitch.intervention.control_file import read_commands, read_status


@pytest.mark.parametrize("run", ["a", "gpt2-wikitext", "A.b_c-9", "9", "x" * 128])
def test_ordinary_run_names_are_allowed(run: str) -> None:
    """Letters, digits, dot, underscore and hyphen, up to 128."""
    assert check_run_name(run) == run


@pytest.mark.parametrize(
    "run", ["", ".", "..", "../x", "a/b", "a\\b", "-a", "_a", "a b", "a\n", "ä", "x" * 129, "a\0"]
)
def test_other_run_names_are_refused_with_the_way_out(run: str) -> None:
    """A run name becomes a folder and a label, so nothing else passes."""
    with pytest.raises(RunNameError, match="use 1 to 128 letters"):
        check_run_name(run)


NEEDED: dict[str, dict[str, Any]] = {
    "set_lr": {"value": 1e-3},
    "clip_gradients": {"max_norm": 1.0},
    "skip_batches": {"count": 10},
    "set_sampling": {"layers": 1},
}
"""What cannot be left out, by action."""


@pytest.mark.parametrize("action", sorted(ACTIONS))
def test_only_what_has_no_default_has_to_be_given(action: str) -> None:
    """Each action can be given with what nobody can guess; without it, it is refused."""
    needed = NEEDED.get(action, {})
    assert check_action(action, needed).model_dump(exclude_unset=True) == needed
    if needed:
        with pytest.raises(CommandError, match=f"of action '{action}' is not valid"):
            check_action(action)


def test_a_command_spells_out_the_defaults_that_every_trainer_knows() -> None:
    """The journal shows what was asked for; names that older trainers refuse travel only where they count."""
    assert checked_params("reduce_lr") == {"factor": 0.5}
    assert checked_params("rollback", {"step": 3}) == {"step": 3}
    assert checked_params("rollback", {"data": "skip"}) == {}
    assert checked_params("rollback", {"data": "rewind"}) == {"data": "rewind"}
    assert checked_params("snapshot") == {}
    assert checked_params("snapshot", {"pin": True}) == {"pin": True}


def test_the_parameters_of_a_custom_action_pass_unjudged_but_bounded() -> None:
    """What the trainer judges has to be JSON of a size that control files can hold."""
    mixed = {"share": 0.5, "names": ["a", None], "deep": {"x": True}}
    assert checked_params("drop_source", mixed, custom=("drop_source",)) == mixed
    for params, why in (({"text": "x" * 10_000}, "more than 10000"), ({"x": float("nan")}, "not JSON")):
        with pytest.raises(CommandError, match=why):
            checked_params("drop_source", params, custom=("drop_source",))
    with pytest.raises(CommandError, match=r"did you mean 'drop_source'\? Register it\."):
        checked_params("drop_sorce", custom=("drop_source",), where="Register it.")


@pytest.mark.parametrize("name", ["", "Drop", "1st", "a-b", "a" * 65, "pause", "a\n"])
def test_names_that_a_custom_action_cannot_have(name: str) -> None:
    """A name is a label value and a command line's word, and never a built-in action's."""
    with pytest.raises(CommandError):
        check_action_name(name)
    check_action_name("a" * 64)


def test_an_unknown_action_names_the_nearest() -> None:
    """A typo is answered with what was probably meant."""
    with pytest.raises(CommandError, match="'reduce-lr' does not exist: did you mean 'reduce_lr'"):
        check_action("reduce-lr")
    with pytest.raises(CommandError, match="use one of pause, resume"):
        check_action("xyzzy")


@pytest.mark.parametrize(
    ("action", "params"),
    [
        ("pause", {"seconds": 3}),
        ("reduce_lr", {"factor": 0}),
        ("reduce_lr", {"factor": 1.0}),
        ("reduce_lr", {"factor": -1}),
        ("reduce_lr", {"factor": float("nan")}),
        ("reduce_lr", {"factor": "much"}),
        ("reduce_lr", {"faktor": 0.5}),
        ("set_lr", {"value": 0}),
        ("set_lr", {"value": 1e4}),
        ("set_lr", {"value": float("inf")}),
        ("clip_gradients", {"max_norm": 0}),
        ("clip_gradients", {"max_norm": 1, "steps": -1}),
        ("skip_batches", {"count": 0}),
        ("skip_batches", {"count": 100_001}),
        ("set_sampling", {}),
        ("set_sampling", {"layers": -1}),
        ("set_sampling", {"layer": 1}),
        ("rollback", {"data": "forward"}),
        ("rollback", {"step": -1}),
        ("rollback", {"lr_factor": 2}),
        ("rollback", {"before_step": -1}),
        ("rollback", {"step": 3, "before_step": 3}),
        ("rollback", {"or_oldest": True}),
        ("stop", {"snapshot": "perhaps"}),
    ],
)
def test_parameters_are_bounded(action: str, params: dict[str, Any]) -> None:
    """Unknown and out-of-bounds parameters are refused, by name."""
    with pytest.raises(CommandError, match=f"of action '{action}' is not valid"):
        check_action(action, params)


@given(
    st.binary(max_size=300)
    | st.recursive(
        st.none() | st.booleans() | st.floats() | st.text(max_size=20),
        lambda inner: (
            st.lists(inner, max_size=4)
            | st.dictionaries(
                st.sampled_from(["schema", "run", "epoch", "commands", "id", "seq", "state", "results"]),
                inner,
                max_size=6,
            )
        ),
        max_leaves=20,
    ).map(lambda value: __import__("json").dumps(value).encode())
)
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_content_breaks_the_reader(tmp_path: Path, content: bytes) -> None:
    """A control file gives a model, None, or a ControlFileError; never another exception."""
    path = tmp_path / "file.json"
    path.write_bytes(content)
    for read in (read_commands, read_status):
        with contextlib.suppress(ControlFileError):
            read(path, "run-1")
