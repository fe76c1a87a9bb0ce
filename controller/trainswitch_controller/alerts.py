"""Alertmanager's webhook payload, version 4.

Source: https://prometheus.io/docs/alerting/latest/configuration/#webhook_config
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, AwareDatetime, BaseModel, ConfigDict, Field

from trainswitch_controller.validation import Text, storable

MAX_ALERTS = 5000
"""Alerts of one delivery; a default controller's largest body holds fewer of Alertmanager's own."""
MAX_LABELS = 200
MAX_LABEL_CHARS = 4096
"""Longest label or annotation that is kept; the end of a longer one is cut off."""


def _bounded(text: str) -> str:
    text = storable(text)
    return text if len(text) <= MAX_LABEL_CHARS else text[: MAX_LABEL_CHARS - 1] + "…"


_LabelText = Annotated[str, AfterValidator(_bounded)]
_Labels = Annotated[dict[_LabelText, _LabelText], Field(max_length=MAX_LABELS)]


class Alert(BaseModel):
    """One entry of ``alerts``; `fingerprint` and `starts_at` together identify the episode.

    Unknown keys are ignored here and in `Webhook`: the format is Alertmanager's, and newer versions add
    to it.
    """

    model_config = ConfigDict(extra="ignore", frozen=True, populate_by_name=True)

    status: Literal["firing", "resolved"]
    labels: _Labels
    annotations: _Labels = {}
    starts_at: AwareDatetime = Field(alias="startsAt")
    """When Prometheus saw it firing first; stays the same in every resend."""
    fingerprint: Annotated[Text, Field(min_length=1, max_length=128)]
    """Hash of the labels."""

    @property
    def name(self) -> str:
        """The alert's name, or '' where the label is missing."""
        return self.labels.get("alertname", "")

    @property
    def started(self) -> float:
        """`starts_at` in Unix seconds."""
        return self.starts_at.timestamp()


class Webhook(BaseModel):
    """One delivery. The group's own ``status`` is left out on purpose: only single alerts decide anything."""

    model_config = ConfigDict(extra="ignore", frozen=True, populate_by_name=True)

    version: Literal["4"]
    receiver: Text = ""
    group_key: Text = Field(default="", alias="groupKey")
    truncated_alerts: int = Field(default=0, alias="truncatedAlerts", ge=0, le=2**31 - 1)
    """How many alerts Alertmanager left out because of ``max_alerts``."""
    alerts: Annotated[tuple[Alert, ...], Field(max_length=MAX_ALERTS)]
