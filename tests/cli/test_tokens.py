"""Tokens are made once, whole, and for their owner only."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from trainswitch_controller.cli.errors import CliError
from trainswitch_controller.cli.tokens import ensure_token, operator_token_path, read_operator_token


def test_a_missing_token_is_made_for_its_owner_only(home: Path) -> None:
    """File and folder cannot be read by others, and the token is long enough not to be guessed."""
    path = ensure_token(operator_token_path(home))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert len(read_operator_token(path)) >= 32
    assert [path] == list(path.parent.iterdir())


def test_an_existing_token_stays(home: Path) -> None:
    """A second start uses the token that others know already."""
    path = ensure_token(operator_token_path(home))
    before = path.read_bytes()
    assert ensure_token(path).read_bytes() == before


def test_an_unwritable_folder_is_named(home: Path) -> None:
    """What stands in the way is named together with the way out."""
    home.parent.mkdir(exist_ok=True)
    home.write_text("a file where the folder belongs")
    with pytest.raises(CliError, match=r"cannot write the token .*--home"):
        ensure_token(operator_token_path(home))
