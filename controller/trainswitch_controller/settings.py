"""The controller's settings: where its files are, and where it listens."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pydantic import Field, ValidationError, field_validator, model_validator
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError
from typing_extensions import Self

from trainswitch_controller.errors import SettingsError
from trainswitch_controller.validation import Strict, first_fault


class Settings(Strict):
    """What one controller is given at its start; nothing here changes while it runs."""

    control_dir: Path
    """Holds ``<run>/commands.json`` and ``<run>/status.json``; the trainers create the run folders."""
    journal_url: str
    """SQLAlchemy URL, such as ``sqlite:////var/lib/trainswitch/journal.db`` or ``postgresql+psycopg://…``."""
    policy: Path
    """The YAML file that says which alert causes what."""
    alertmanager_token_file: Path
    """Tokens that Alertmanager may present at the webhook, one a line; readable by its owner only."""
    operator_token_file: Path
    """Tokens with which people and scripts may look at everything and give orders."""
    viewer_token_file: Path | None = None
    """Tokens with which they may only look; None: nobody has this role."""
    relays: Path | None = None
    """The YAML file of relays: gateways to which Alertmanager's webhooks are passed on as short texts."""
    runbooks_dir: Path | None = None
    """Folder with ``<Alert>.md``; ``/runbooks/<Alert>``, where notifications' links lead, serves it."""
    prometheus_url: str | None = None
    """Where the onset of each alert is looked for, such as ``http://127.0.0.1:9090``; None: nowhere."""
    onset_signals: Path | None = None
    """The YAML file of signals that an onset is looked for in, in place of the one that is shipped."""
    host: str = "127.0.0.1"
    """Address to listen at; anything but loopback should have TLS."""
    port: int = Field(default=9095, ge=0, le=65535)
    """Port to listen at; 0 takes any free one and logs it."""
    max_body_bytes: int = Field(default=1_048_576, ge=1, le=64 * 1_048_576)
    """Largest request body that is read."""
    signing_key_file: Path | None = None
    """Keys that the trainers have, too, one a line; with it ``commands.json`` is signed, and only a
    ``status.json`` that is signed is believed."""
    failures_per_minute: int = Field(default=10, ge=1, le=10_000)
    """Wrong tokens that one address may send; then its requests get 429 for a while, Alertmanager's never."""
    orders_per_minute: int = Field(default=300, ge=1, le=100_000)
    """Orders, approvals and rejections that one address may send."""
    poll_interval_s: float = Field(default=0.2, gt=0.0, le=60.0)
    """Seconds between two looks at the status files; commands are written at once, not at this pace."""
    tls_cert: Path | None = None
    """PEM certificate chain; with `tls_key`, the controller speaks HTTPS only."""
    tls_key: Path | None = None
    """PEM private key of `tls_cert`."""
    tls_client_ca: Path | None = None
    """PEM certificates of the authorities one of which every client's certificate must be from (mTLS)."""

    @field_validator("journal_url")
    @classmethod
    def _durable(cls, value: str) -> str:
        try:
            url = make_url(value)
        except ArgumentError:
            raise ValueError("this is not a database URL; write for example sqlite:///journal.db") from None
        if url.get_backend_name() == "sqlite" and url.database in {None, "", ":memory:"}:
            raise ValueError(
                "a journal in memory forgets what it promised; name a file: sqlite:///journal.db"
            )
        return value

    @field_validator("prometheus_url")
    @classmethod
    def _http(cls, value: str | None) -> str | None:
        if value is not None:
            parts = urlsplit(value)
            if parts.scheme not in {"http", "https"} or not parts.hostname or parts.query or parts.fragment:
                raise ValueError("this is not an HTTP address; write for example http://127.0.0.1:9090")
        return value

    @model_validator(mode="after")
    def _onset_needs_prometheus(self) -> Self:
        if self.onset_signals is not None and self.prometheus_url is None:
            raise ValueError("onset_signals has no effect without prometheus_url: give both or neither")
        return self

    @model_validator(mode="after")
    def _whole_tls(self) -> Self:
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ValueError("tls_cert and tls_key belong together: give both or neither")
        if self.tls_client_ca is not None and self.tls_cert is None:
            raise ValueError("tls_client_ca has no effect without TLS: give tls_cert and tls_key, too")
        return self


def parse_settings(values: dict[str, Any]) -> Settings:
    """Return the settings that `values` describe.

    Raises:
        SettingsError: a setting is unknown, missing or out of bounds; the sentence names it and its value.
    """
    try:
        return Settings.model_validate(values)
    except ValidationError as error:
        raise SettingsError(f"controller settings: {first_fault(error)}") from None
