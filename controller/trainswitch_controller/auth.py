"""Who may do what: the roles, their tokens in files, and callers who fail too often or ask too much."""

from __future__ import annotations

import hmac
import logging
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, get_args

from trainswitch.errors import SecretFileError
from trainswitch.secret_file import SecretFile
from trainswitch_controller.errors import Forbidden, TokenError, TooManyRequests, Unauthorized
from trainswitch_controller.metrics import Metrics
from trainswitch_controller.ratelimit import RateLimit, network_of

log = logging.getLogger(__name__)

Role = Literal["alertmanager", "operator", "viewer"]
ROLES: tuple[Role, ...] = get_args(Role)

SHORTEST_TOKEN = 16
"""Characters that a token has at least: what is longer cannot be guessed at any pace of a network."""


class TokenFile:
    """The tokens of one role, or for one gateway; the file is read again whenever it has changed."""

    def __init__(self, path: Path, owner: str, shortest: int = SHORTEST_TOKEN) -> None:
        self._file = SecretFile(path, f"{owner} token", shortest)

    def tokens(self) -> tuple[bytes, ...]:
        """Return every token that is valid at present.

        Raises:
            TokenError: the file is not usable; nobody is let in by a token that it held before.
        """
        try:
            return self._file.secrets()
        except SecretFileError as error:
            raise TokenError(str(error)) from error

    def holds(self, presented: bytes) -> bool:
        """Return whether `presented` is one of the tokens; how long that takes does not tell how near it is.

        Raises:
            TokenError: the file is not usable.
        """
        matches = [hmac.compare_digest(presented, token) for token in self.tokens()]
        return any(matches)


class Access:
    """Lets callers in by their role; one thread at a time asks."""

    def __init__(
        self,
        files: Mapping[Role, TokenFile],
        metrics: Metrics,
        *,
        failures_per_minute: int,
        orders_per_minute: int,
    ) -> None:
        """Describe who is let in.

        Args:
            files: the token file of each role there is.
            metrics: counts who is turned away.
            failures_per_minute: wrong tokens that one address may send.
            orders_per_minute: changes that one address may ask for.
        """
        self._files = files
        self._metrics = metrics
        self._failures = RateLimit(failures_per_minute)
        self._orders = RateLimit(orders_per_minute)

    def check(self) -> None:
        """See whether every file can be used, and no token has two roles.

        Raises:
            TokenError: one cannot, or one has.
        """
        roles: dict[bytes, Role] = {}
        for role, file in self._files.items():
            for token in file.tokens():
                other = roles.setdefault(token, role)
                if other != role:
                    raise TokenError(
                        f"the {other} and the {role} token files hold the same token, which opens the "
                        "doors of both: give each role its own."
                    )

    def alertmanager(self, address: str, authorization: str | None) -> None:
        """Let Alertmanager pass; its token is never turned away, whatever else comes from its address.

        Raises:
            Unauthorized: the header holds no valid token.
            Forbidden: it holds another role's token.
            TooManyRequests: it holds no valid token, and there were too many of those.
            TokenError: the token file is not usable.
        """
        self._admit((network_of(address), "webhook"), authorization, ("alertmanager",))

    def viewer(self, address: str, authorization: str | None) -> None:
        """Let viewers and operators pass; raises as `operator` does."""
        self._api(address, authorization, ("viewer", "operator"))

    def operator(self, address: str, authorization: str | None) -> None:
        """Let operators pass who want to change something.

        Raises:
            Unauthorized: the header holds no valid token.
            Forbidden: it holds another role's token.
            TooManyRequests: too many wrong tokens, or too many orders, came from this address.
            TokenError: the token file is not usable.
        """
        self._api(address, authorization, ("operator",))
        wait = self._orders.take(network_of(address))
        if wait:
            raise self._too_many("too_many_orders", "orders", wait)

    def _api(self, address: str, authorization: str | None, allowed: tuple[Role, ...]) -> None:
        key = (network_of(address), "api")
        # Before the token is looked at: otherwise the answer to the right one would end the guessing.
        if wait := self._failures.wait(key):
            raise self._too_many("too_many_failures", "wrong tokens", wait)
        self._admit(key, authorization, allowed)

    def _admit(self, key: tuple[str, str], authorization: str | None, allowed: tuple[Role, ...]) -> None:
        scheme, _, text = (authorization or "").partition(" ")
        # Header values reach us as latin-1; comparing bytes keeps compare_digest away from non-ASCII strings.
        presented = text.strip().encode("latin-1", "replace") if scheme.lower() == "bearer" else b""
        roles, fault = self._roles_of(presented, allowed)
        if any(role in allowed for role in roles):
            return
        if fault is not None:
            raise fault
        needed = " or ".join(role for role in allowed if role in self._files)
        if roles:
            self._metrics.refused("forbidden")
            log.warning(
                "the %s token was sent where the %s token belongs: request from %s", roles[0], needed, key[0]
            )
            raise Forbidden(
                f"this address needs the {needed} token, and the one that was sent is the {roles[0]}'s."
            )
        wait = self._failures.take(key)
        if wait:
            raise self._too_many("too_many_failures", "wrong tokens", wait)
        self._metrics.refused("unauthorized")
        log.warning("a %s token was missing or wrong: request from %s", needed, key[0])
        raise Unauthorized(
            f"this address needs the {needed} token: send 'Authorization: Bearer …' with the content of its "
            "token file."
        )

    def _roles_of(self, presented: bytes, allowed: tuple[Role, ...]) -> tuple[list[Role], TokenError | None]:
        """Return the roles that have the token `presented`, and why an allowed one could not be asked."""
        roles: list[Role] = []
        fault = None
        for role, file in self._files.items():
            try:
                if file.holds(presented):
                    roles.append(role)
            except TokenError as error:
                fault = error if role in allowed else fault
        return roles, fault

    def _too_many(self, reason: str, what: str, wait: float) -> TooManyRequests:
        self._metrics.refused(reason)
        seconds = math.ceil(wait)
        return TooManyRequests(f"too many {what} came from this address: try again in {seconds} s.", seconds)
