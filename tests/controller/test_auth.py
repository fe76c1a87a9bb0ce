"""Token files: who may read them, what they hold, when they are read again; and who is let in by them."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trainswitch_controller.auth import Access, TokenFile
from trainswitch_controller.errors import Forbidden, TokenError, TooManyRequests, Unauthorized
from trainswitch_controller.metrics import Metrics
from trainswitch_controller.ratelimit import MAX_CALLERS, RateLimit, network_of

SECRET = "a-secret-of-20-chars"
OTHER = "other-secret-of-23-char"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A token file as it should be."""
    path = tmp_path / "token"
    path.write_text(f"{SECRET}\n")
    path.chmod(0o600)
    return path


@pytest.fixture
def access(tmp_path: Path, clock: Any) -> Access:
    """Three roles whose tokens are the role's name and a tail, 3 failures and 2 orders a minute."""
    files = {}
    for role in ("alertmanager", "operator", "viewer"):
        file = tmp_path / role
        file.write_text(f"{role}-0123456789\n")
        file.chmod(0o600)
        files[role] = TokenFile(file, role)
    made = Access(files, Metrics((), clock), failures_per_minute=3, orders_per_minute=2)  # type: ignore[arg-type]
    made._failures._now = made._orders._now = clock
    return made


def bearer(role: str) -> str:
    """The header that `role` sends."""
    return f"Bearer {role}-0123456789"


def refusals(access: Access, reason: str) -> float | None:
    """Return how many callers were turned away for `reason`."""
    return access._metrics.registry.get_sample_value(
        "trainswitch_controller_refused_requests_total", {"reason": reason}
    )


def test_each_line_is_a_token(path: Path) -> None:
    """While a token is replaced the old and the new one are both valid; blank lines mean nothing."""
    path.write_text(f"{SECRET}\n\n  {OTHER} \n")
    token = TokenFile(path, "operator")
    assert token.tokens() == (SECRET.encode(), OTHER.encode())
    assert token.holds(SECRET.encode())
    assert token.holds(OTHER.encode())
    for wrong in (b"", SECRET[:-1].encode(), f"{SECRET}\n{OTHER}".encode(), b"s\xe9cret"):
        assert not token.holds(wrong)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o777])
def test_a_file_that_others_can_use_is_refused(mode: int, path: Path) -> None:
    """The sentence says which mode it has and which command mends it."""
    path.chmod(mode)
    with pytest.raises(TokenError, match=rf"mode {mode:04o} .*'chmod 600 {path}'"):
        TokenFile(path, "operator").tokens()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "is empty"),
        (" \n", "is empty"),
        (f"{SECRET} b", "one operator token a line"),
        ("x" * 5000, "one operator token a line"),
        ("\n".join([SECRET] * 9), "one operator token a line"),
        ("short", "of 5 characters (1 of 1), which can be guessed"),
        (f"{SECRET}\n0123456789abcde", "of 15 characters (2 of 2), which can be guessed"),
    ],
)
def test_a_file_without_good_tokens_is_refused(content: str, words: str, path: Path) -> None:
    """An empty file would let everybody in who sends nothing; a short token can be guessed."""
    path.write_text(content)
    with pytest.raises(TokenError) as refused:
        TokenFile(path, "operator").tokens()
    assert words in str(refused.value)
    assert SECRET not in str(refused.value)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    """The sentence names the file and what to do; a named pipe is no file, and holds nobody up."""
    with pytest.raises(TokenError, match=r"none cannot be read: No such file .* mode 0600"):
        TokenFile(tmp_path / "none", "operator").tokens()
    os.mkfifo(tmp_path / "pipe", 0o600)
    with pytest.raises(TokenError, match="pipe is empty"):
        TokenFile(tmp_path / "pipe", "operator").tokens()


def test_a_changed_file_is_read_again(path: Path) -> None:
    """A new token counts from the next request on, also when the file was replaced by renaming."""
    token = TokenFile(path, "operator")
    assert token.holds(SECRET.encode())
    fresh = path.with_name("fresh")
    fresh.write_text(OTHER)
    fresh.chmod(0o600)
    fresh.replace(path)
    assert token.holds(OTHER.encode())
    assert not token.holds(SECRET.encode())


def test_a_file_that_turns_unusable_closes_the_door(path: Path) -> None:
    """Removing the file, or opening it to others, revokes the token that was known."""
    token = TokenFile(path, "operator")
    assert token.holds(SECRET.encode())
    path.chmod(0o644)
    with pytest.raises(TokenError):
        token.holds(SECRET.encode())
    path.unlink()
    with pytest.raises(TokenError):
        token.holds(SECRET.encode())


def test_each_role_opens_its_own_doors(access: Access) -> None:
    """Viewers look, operators also give orders, only Alertmanager delivers; the scheme's case is free."""
    access.viewer("a", bearer("viewer"))
    access.viewer("a", bearer("operator").replace("Bearer", "bearer "))
    access.operator("a", bearer("operator"))
    access.alertmanager("a", bearer("alertmanager"))
    for door, role, needed in (
        (access.operator, "viewer", "operator"),
        (access.operator, "alertmanager", "operator"),
        (access.viewer, "alertmanager", "viewer or operator"),
        (access.alertmanager, "operator", "alertmanager"),
        (access.alertmanager, "viewer", "alertmanager"),
    ):
        with pytest.raises(Forbidden) as refused:
            door("a", bearer(role))
        assert str(refused.value) == (
            f"this address needs the {needed} token, and the one that was sent is the {role}'s."
        )
    assert refusals(access, "forbidden") == 5


@pytest.mark.parametrize(
    "header",
    [
        None,
        "",
        "operator-0123456789",
        "Basic operator-0123456789",
        "Bearer",
        "Bearer ",
        "Bearer operator-012345678",
        "Bearer operator-01234567890",
        "Bearer opérator-0123456789",
    ],
)
def test_anything_else_opens_none(header: str | None, access: Access) -> None:
    """The refusal names the role and how to send the token, and never the token."""
    for door in (access.alertmanager, access.viewer, access.operator):
        with pytest.raises(Unauthorized, match=r"token: send 'Authorization: Bearer …'") as refused:
            door("a", header)
        assert "0123456789" not in str(refused.value)
    assert refusals(access, "unauthorized") == 3


def test_a_guesser_is_held_up(access: Access, clock: Any) -> None:
    """After 3 wrong tokens an address gets 429 for 20 s, whatever it sends; others are not affected."""
    for _ in range(3):
        with pytest.raises(Unauthorized):
            access.viewer("10.0.0.1", "Bearer guess")
    for header in ("Bearer guess", bearer("operator")):
        with pytest.raises(TooManyRequests, match=r"too many wrong tokens .* in 20 s") as refused:
            access.viewer("10.0.0.1", header)
        assert refused.value.retry_after == 20
    access.viewer("10.0.0.2", bearer("viewer"))
    assert refusals(access, "too_many_failures") == 2
    clock.time += 20.0
    access.viewer("10.0.0.1", bearer("operator"))
    with pytest.raises(Unauthorized):
        access.viewer("10.0.0.1", "Bearer guess")
    with pytest.raises(TooManyRequests):
        access.viewer("10.0.0.1", "Bearer guess")


def test_alertmanager_is_never_held_up(access: Access) -> None:
    """Its alerts pass although somebody at the same address keeps sending wrong tokens, to either door."""
    for _ in range(10):
        for door in (access.alertmanager, access.viewer):
            with pytest.raises((Unauthorized, TooManyRequests)):
                door("10.0.0.1", "Bearer guess")
        access.alertmanager("10.0.0.1", bearer("alertmanager"))
    assert refusals(access, "unauthorized") == 6


def test_orders_are_bounded_and_looking_is_not(access: Access, clock: Any) -> None:
    """The third order within a minute gets 429; half a minute later one is free again."""
    for _ in range(2):
        access.operator("a", bearer("operator"))
    with pytest.raises(TooManyRequests, match=r"too many orders .* in 30 s"):
        access.operator("a", bearer("operator"))
    for _ in range(5):
        access.viewer("a", bearer("operator"))
    clock.time += 30.0
    access.operator("a", bearer("operator"))


def test_one_token_for_two_roles_is_refused(access: Access, tmp_path: Path) -> None:
    """A viewer's token that is the operator's, too, would make every viewer an operator."""
    access.check()
    (tmp_path / "viewer").write_text("viewer-0123456789\noperator-0123456789\n")
    with pytest.raises(TokenError, match="the operator and the viewer token files hold the same token"):
        access.check()


def test_a_broken_file_of_one_role_does_not_lock_the_other_out(access: Access, tmp_path: Path) -> None:
    """Operators go on looking when the viewers' file is gone; a viewer gets 503, not 401."""
    (tmp_path / "viewer").unlink()
    access.viewer("a", bearer("operator"))
    with pytest.raises(TokenError, match=r"viewer token file .* cannot be read"):
        access.viewer("a", bearer("viewer"))
    with pytest.raises(Unauthorized):
        access.operator("a", bearer("viewer"))


def test_callers_are_remembered_in_bounded_memory(clock: Any) -> None:
    """Whoever comes from ever new addresses makes the limit forget those not seen for longest, not grow."""
    limit = RateLimit(1, now=clock)
    for number in range(MAX_CALLERS + 100):
        assert limit.take(number) == 0.0
    assert len(limit) == MAX_CALLERS
    assert limit.wait(MAX_CALLERS) == 60.0
    assert limit.wait(0) == 0.0


@pytest.mark.parametrize(
    ("addresses", "network"),
    [
        (["10.0.0.1", "::ffff:10.0.0.1"], "10.0.0.1"),
        (["2001:db8::1", "2001:db8::ffff:1"], "2001:db8::/64"),
        (["fe80::1%eth0"], "fe80::/64"),
        (["not an address"], "not an address"),
    ],
)
def test_one_host_is_one_caller(addresses: list[str], network: str) -> None:
    """An IPv6 host has 2**64 addresses of its own, and they count as one."""
    assert {network_of(address) for address in addresses} == {network}


def test_over_http(home: Any, make_server: Callable[..., Any]) -> None:
    """429 says when to try again; a spoofed address does not help; Alertmanager passes all the same."""
    server = make_server(failures_per_minute=2)
    wrong = {"Authorization": "Bearer guess"}
    codes = []
    for number in range(3):
        spoofed = {**wrong, "X-Forwarded-For": f"10.0.0.{number}", "Forwarded": f"for=10.0.0.{number}"}
        response = server.client.get("/api/v1/runs", headers=spoofed)
        codes.append(response.status_code)
    assert codes == [401, 401, 429]
    assert response.headers["retry-after"] == "30"
    assert server.ask("GET", "/api/v1/runs").status_code == 429
    assert [server.post(b"{", token="guess").status_code for _ in range(3)] == [401, 401, 429]
    assert server.post(b"{").status_code == 400


def test_a_viewer_over_http(home: Any, make_server: Callable[..., Any]) -> None:
    """A viewer can look at every address that an operator can look at, and post to none."""
    path = home.folder / "viewer.token"
    path.write_text("viewer-0123456789")
    path.chmod(0o600)
    home.trainer()
    server = make_server(viewer_token_file=path)
    viewer = {"Authorization": bearer("viewer")}
    for route in ("runs", "runs/demo", "commands", "episodes", "policy/TrainNonFinite"):
        assert server.client.get(f"/api/v1/{route}", headers=viewer).status_code == 200
    for route in ("runs/demo/commands", "commands/x/approve", "commands/x/reject", "alerts", "relays/x"):
        assert server.client.post(f"/api/v1/{route}", headers=viewer, json={}).status_code == 403
