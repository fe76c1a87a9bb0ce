"""Token files: who may read them, what they may hold, and when they are read again."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainswitch_controller.auth import TokenFile
from trainswitch_controller.errors import TokenError, Unauthorized


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A token file as it should be."""
    path = tmp_path / "token"
    path.write_text("secret\n")
    path.chmod(0o600)
    return path


def test_the_token_opens(path: Path) -> None:
    """The content of the file without its line end is the token; the scheme's case does not matter."""
    token = TokenFile(path, "operator")
    for header in ("Bearer secret", "bearer secret", "Bearer  secret "):
        token.check(header)


@pytest.mark.parametrize(
    "header",
    [
        None,
        "",
        "secret",
        "Basic secret",
        "Bearer",
        "Bearer ",
        "Bearer secre",
        "Bearer secrets",
        "Bearer sécret",
    ],
)
def test_anything_else_does_not(header: str | None, path: Path) -> None:
    """The refusal names the role and how to send the token, and never the token."""
    with pytest.raises(Unauthorized, match="operator token") as refused:
        TokenFile(path, "operator").check(header)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o777])
def test_a_file_that_others_can_use_is_refused(mode: int, path: Path) -> None:
    """The sentence says which mode it has and which command mends it."""
    path.chmod(mode)
    with pytest.raises(TokenError, match=rf"mode {mode:04o} .*'chmod 600 {path}'"):
        TokenFile(path, "operator").token()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "is empty"),
        (" \n", "is empty"),
        ("a b", "one token"),
        ("a\nb", "one token"),
        ("x" * 5000, "one token"),
    ],
)
def test_a_file_without_one_token_is_refused(content: str, words: str, path: Path) -> None:
    """An empty file would let everybody in who sends nothing; two tokens would never match."""
    path.write_text(content)
    with pytest.raises(TokenError, match=words):
        TokenFile(path, "operator").check("Bearer ")


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    """The sentence names the file and what to do."""
    with pytest.raises(TokenError, match=r"none cannot be read: No such file .* mode 0600"):
        TokenFile(tmp_path / "none", "operator").token()


def test_a_changed_file_is_read_again(path: Path) -> None:
    """A new token counts from the next request on, also when the file was replaced by renaming."""
    token = TokenFile(path, "operator")
    token.check("Bearer secret")
    fresh = path.with_name("fresh")
    fresh.write_text("rotated")
    fresh.chmod(0o600)
    fresh.replace(path)
    token.check("Bearer rotated")
    with pytest.raises(Unauthorized):
        token.check("Bearer secret")


def test_a_file_that_turns_unusable_closes_the_door(path: Path) -> None:
    """Removing the file, or opening it to others, revokes the token that was known."""
    token = TokenFile(path, "operator")
    token.check("Bearer secret")
    path.chmod(0o644)
    with pytest.raises(TokenError):
        token.check("Bearer secret")
    path.unlink()
    with pytest.raises(TokenError):
        token.check("Bearer secret")
