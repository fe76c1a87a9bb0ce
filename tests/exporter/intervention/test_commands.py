"""Run names, actions and their parameters; the control files' reader against arbitrary content."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from trainswitch.errors import CommandError, ControlFileError, RunNameError
from trainswitch.intervention.commands import ACTIONS, check_action, check_run_name
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


@pytest.mark.parametrize("action", sorted(ACTIONS))
def test_every_action_has_defaults(action: str) -> None:
    """Each action can be given without parameters."""
    check_action(action)


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
        ("rollback", {"step": -1}),
        ("rollback", {"lr_factor": 2}),
        ("rollback", {"before_step": -1}),
        ("rollback", {"step": 3, "before_step": 3}),
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
