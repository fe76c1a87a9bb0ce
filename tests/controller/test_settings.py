"""Settings: unknown, missing and contradictory ones are refused with one sentence."""

from __future__ import annotations

from typing import Any

import pytest

from trainswitch_controller.errors import SettingsError
from trainswitch_controller.settings import Settings, parse_settings

VALUES: dict[str, Any] = {
    "control_dir": "control",
    "journal_url": "sqlite:///journal.db",
    "policy": "policy.yml",
    "alertmanager_token_file": "a",
    "operator_token_file": "o",
}


def test_defaults() -> None:
    """The controller listens at loopback only, unless told otherwise."""
    settings = Settings(**VALUES)
    assert (settings.host, settings.port, settings.max_body_bytes) == ("127.0.0.1", 9095, 1_048_576)
    assert (settings.poll_interval_s, settings.tls_cert, settings.tls_key) == (0.2, None, None)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"controldir": "x"}, "'controldir' is not a known key: did you mean 'control_dir'?"),
        ({"port": 70_000}, "port = 70000"),
        ({"poll_interval_s": 0}, "poll_interval_s = 0"),
        ({"poll_interval_s": float("nan")}, "poll_interval_s = nan"),
        ({"tls_cert": "cert.pem"}, "tls_cert and tls_key belong together"),
        ({"journal_url": "journal.db"}, "not a database URL"),
        ({"journal_url": "sqlite://"}, "a journal in memory forgets"),
        ({"journal_url": "sqlite:///:memory:"}, "a journal in memory forgets"),
    ],
)
def test_what_is_not_valid_is_named(change: dict[str, Any], words: str) -> None:
    """The sentence names the setting and its value."""
    with pytest.raises(SettingsError) as refused:
        parse_settings({**VALUES, **change})
    assert words in str(refused.value)


def test_a_missing_setting_is_named() -> None:
    """Without a policy there is nothing to run by."""
    with pytest.raises(SettingsError, match="'policy' is missing"):
        parse_settings({key: value for key, value in VALUES.items() if key != "policy"})
