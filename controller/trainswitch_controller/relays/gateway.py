"""One gateway: takes a webhook, and sends its text."""

from __future__ import annotations

import contextlib

import requests

from trainswitch_controller.alerts import Webhook
from trainswitch_controller.auth import TokenFile
from trainswitch_controller.errors import GatewayRefused, GatewayUnavailable
from trainswitch_controller.relays.settings import RelaySettings
from trainswitch_controller.relays.text import message

_CONNECT_TIMEOUT_S = 2.0
_READ_BYTES = 4096
_SHOWN_CHARS = 200


class Gateway:
    """Sends texts as one relay's settings say. It repeats nothing: Alertmanager does, where that can help."""

    def __init__(self, name: str, settings: RelaySettings) -> None:
        """Check that the secrets are there.

        Raises:
            TokenError: a secret's file is missing, empty or readable by others.
        """
        self.name = name
        self._settings = settings
        self._secrets = {
            secret: TokenFile(path, f"relay {name}", shortest=1) for secret, path in settings.secrets.items()
        }
        for secret in self._secrets.values():
            secret.tokens()

    def send(self, webhook: Webhook) -> None:
        """Send the text of `webhook`.

        Raises:
            GatewayUnavailable: the gateway cannot be reached, or asks for a later attempt.
            GatewayRefused: the gateway does not take the request.
            TokenError: a secret's file cannot be used.
        """
        settings = self._settings
        secrets = {name: file.tokens()[0].decode("utf-8", "replace") for name, file in self._secrets.items()}
        arguments = settings.filled({**secrets, **message(webhook, settings.max_chars)})
        try:
            # A gateway that answers without end is cut off: only the beginning of its answer is read.
            with requests.request(
                timeout=(_CONNECT_TIMEOUT_S, settings.timeout_s),
                allow_redirects=False,
                stream=True,
                auth=_as_it_is,
                **arguments,
            ) as response:
                status, answer = response.status_code, _beginning(response)
        except (requests.RequestException, UnicodeError) as error:
            # Its text may hold the address with a secret in it.
            raise GatewayUnavailable(
                f"the gateway of relay {self.name!r} cannot be reached ({type(error).__name__}): "
                "is its url right, and its host up?"
            ) from None
        said = f"the gateway of relay {self.name!r} answered {status}{_shown(answer)}"
        if status == requests.codes.too_many_requests or status >= requests.codes.server_error:
            raise GatewayUnavailable(f"{said}.")
        if not requests.codes.ok <= status < requests.codes.multiple_choices:
            raise GatewayRefused(f"{said}: check its settings and secrets.")
        if settings.expect is not None and settings.expect not in answer:
            raise GatewayRefused(f"{said}, without {settings.expect!r}: check its settings and secrets.")


def _as_it_is(request: requests.PreparedRequest) -> requests.PreparedRequest:
    """Keep an entry of ~/.netrc from replacing the header that the settings ask for."""
    return request


def _beginning(response: requests.Response) -> str:
    with contextlib.suppress(requests.RequestException):
        return next(response.iter_content(_READ_BYTES), b"").decode("utf-8", "replace")
    return ""


def _shown(answer: str) -> str:
    said = " ".join(answer.split())[:_SHOWN_CHARS]
    return f" ({said})" if said and said.isprintable() else ""
