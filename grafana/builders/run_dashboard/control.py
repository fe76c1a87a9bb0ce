"""Row "Control": the way from an alert through the controller to the trainer's answer."""

from __future__ import annotations

from grafana.builders.common import PanelBuilder, bars, graph, increase, instant, number, query, series
from grafana_foundation_sdk.builders import timeseries
from grafana_foundation_sdk.models import common

TITLE = "Control"

_DELAY = series("trainswitch_command_delay_seconds_bucket")
_POLLED = series("trainswitch_control_file_read_timestamp_seconds")
_AGE = "trainswitch_controller_alert_age_seconds_bucket"


def _spread(selector: str) -> tuple[str, str]:
    """Return the median and the 99 % quantile over the dashboard's whole time range, as events are few."""
    counts = f"sum by (le) (increase({selector}[$__range]))"
    return f"histogram_quantile(0.5, {counts})", f"histogram_quantile(0.99, {counts})"


def _total(title: str, description: str, counter: str, *labels: str, span: int) -> timeseries.Panel:
    """Return a panel of a controller's counter for all runs, by `labels`.

    It shows totals: Prometheus scrapes the controller less often than the trainers, so a rate over the
    interval that suits them would hold too few of its samples.
    """
    total = f"sum by ({', '.join(labels)}) (trainswitch_controller_{counter}) > 0"
    legend = ": ".join(f"{{{{{label}}}}}" for label in labels)
    panel = graph(title, description, "none", query("A", total, legend), span=span)
    return panel.min(0).decimals(0).line_interpolation(common.LineInterpolation.STEP_AFTER)


def panels() -> list[PanelBuilder]:
    """Return the row's panels, in reading order."""
    delay, delay_99 = _spread(_DELAY)
    age, age_99 = _spread(_AGE)
    return [
        bars(
            "Commands answered",
            "Commands that the trainer answered, by action and result.",
            "none",
            query(
                "A",
                f"sum by (action, result) ({increase('trainswitch_commands_total')}) > 0",
                "{{action}}: {{result}}",
            ),
        ),
        number(
            "Command delay",
            "Time from a command's issue to its answer, over the dashboard's time range.",
            "s",
            instant("A", delay, "median"),
            instant("B", delay_99, "99 %"),
            span=4,
            height=8,
        ),
        bars(
            "Control-file errors",
            "Control files that the trainer did not take or could not write, by reason.",
            "none",
            query(
                "A", f"sum by (reason) ({increase('trainswitch_control_file_errors_total')})", "{{reason}}"
            ),
            span=6,
        ),
        graph(
            "Last poll of the control folder",
            "Time since the trainer last looked for commands; it grows where the folder hangs.",
            "s",
            query("A", f"time() - {_POLLED}", "rank {{rank}}"),
            span=6,
        ).min(0),
        _total(
            "Alerts by outcome, all runs",
            "Alerts that the controller has received since it started, and what it made of each.",
            "alerts_total",
            "alertname",
            "outcome",
            span=8,
        ),
        number(
            "Age of alerts, all runs",
            "Time from an alert's start to the controller's first decision, over the dashboard's time range.",
            "s",
            instant("A", age, "median"),
            instant("B", age_99, "99 %"),
            span=4,
            height=8,
        ),
        _total(
            "Commands by state, all runs",
            "States that the controller's commands have reached since it started.",
            "commands_total",
            "action",
            "state",
            span=6,
        ),
        _total(
            "Webhook answers, all runs",
            "HTTP codes with which the controller has answered Alertmanager since it started.",
            "webhooks_total",
            "code",
            span=3,
        ),
        _total(
            "Failed writes, all runs",
            "Failures to write a command file since the controller started; each is tried again.",
            "write_failures_total",
            "reason",
            span=3,
        ),
    ]
