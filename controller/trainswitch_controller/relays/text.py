"""A group of alerts as one short text: what a phone shows."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timezone

from trainswitch_controller.alerts import Alert, Webhook

INTERVENTION = "TrainIntervention"
"""The alert whose description says what the controller did about the others."""
_SEVERITIES = ("critical", "warning", "info")
_MOST_NAMES = 3


def message(webhook: Webhook, max_chars: int) -> dict[str, str]:
    """Return the facts that a relay fills in: ``text``, ``run``, ``status``, ``severity``, ``alerts``.

    The text is one line of at most `max_chars` characters. Where it does not fit, the description of the
    first alert is cut: which run, which alerts, since when, and what the controller did come before it.
    """
    troubles = [alert for alert in webhook.alerts if alert.name != INTERVENTION]
    firing = [alert for alert in troubles if alert.status == "firing"]
    answers = [a for a in webhook.alerts if a.name == INTERVENTION and a.status == "firing"]
    about = firing or troubles
    status = "firing" if firing else ("resolved" if troubles or not answers else "answered")
    severity = next((one for one in _SEVERITIES if any(_severity(a) == one for a in firing)), "none")
    run = _joined(sorted({a.labels["run"] for a in webhook.alerts if a.labels.get("run")}))
    names = _joined(sorted({alert.name for alert in about}))
    parts = [_head(status, severity, run, names)]
    if firing:
        earliest = min(alert.starts_at for alert in firing).astimezone(timezone.utc)
        parts.append(f"since {earliest:%d %b %H:%M} UTC.")
    said = " ".join(_description(alert) for alert in answers)
    if said:
        parts.append(f"Controller: {said}")
    if firing:
        parts.append(_description(firing[0]))
    text = " ".join(" ".join(parts).split())
    if len(text) > max_chars:
        text = f"{text[: max_chars - 1].rstrip()}…"
    return {"text": text, "run": run, "status": status, "severity": severity, "alerts": names}


def _head(status: str, severity: str, run: str, names: str) -> str:
    word = severity if status == "firing" and severity != "none" else status
    return f"{word.upper()} {run}: {names}" if run else f"{word.upper()} {names}"


def _severity(alert: Alert) -> str:
    return alert.labels.get("severity", "")


def _description(alert: Alert) -> str:
    return alert.annotations.get("description") or alert.annotations.get("summary", "")


def _joined(names: Sequence[str]) -> str:
    more = len(names) - _MOST_NAMES
    return ", ".join(names[:_MOST_NAMES]) + (f" and {more} more" if more > 0 else "")
