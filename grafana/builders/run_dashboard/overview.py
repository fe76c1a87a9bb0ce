"""Row "Overview": is the run alive, how far is it, and has anybody had to step in."""

from __future__ import annotations

from grafana.builders.common import PanelBuilder, instant, number, query, series, steps, timeline, value_names
from grafana_foundation_sdk.models import common

TITLE = "Overview"

_APPLIED = series("trainswitch_commands_total", 'result="applied"')


def panels() -> list[PanelBuilder]:
    """Return the row's panels, in reading order."""
    return [
        number(
            "State",
            "What the run says it is doing. It is the last thing the trainer reported: see Scrape for "
            "whether it still reports.",
            "none",
            instant("A", f"max by (state) ({series('train_run_state')}) == 1", "{{state}}"),
        ).text_mode(common.BigValueTextMode.NAME),
        number(
            "Scrape",
            "Whether Prometheus reached the trainer's endpoint at the last scrape, for the rank that is "
            "worst off. A run that has ended withdraws its endpoint.",
            "none",
            instant("A", f"min({series('up')})"),
        )
        .mappings(value_names({"0": ("down", "red"), "1": ("up", "green")}))
        .no_value("no target"),
        number(
            "Step",
            "Newest step of the optimizer; goes back after a rollback.",
            "none",
            instant("A", f"max({series('train_step')})"),
        ),
        number(
            "Last step",
            "Time since the last step ended, for the rank that is furthest behind. It grows while the run "
            "is paused, evaluates, writes a checkpoint, or hangs.",
            "s",
            instant("A", f"time() - min({series('train_last_step_timestamp_seconds')})"),
        ).thresholds(steps((None, "green"), (30, "orange"), (120, "red"))),
        number(
            "Ranks",
            "Ranks that Prometheus reaches now, and the number that the run was started with.",
            "none",
            instant("A", f"sum({series('up')})", "reached"),
            instant("B", f"max({series('train_world_size')})", "started"),
        ),
        number(
            "Warm-up",
            "During the warm-up only non-finite values and absolute limits raise alarms.",
            "none",
            instant("A", f"min({series('train_baseline_ready')})"),
        ).mappings(value_names({"0": ("warming up", "orange"), "1": ("over", "green")})),
        number(
            "Alerts firing",
            "Alerts of this run that fire now. Without a value, Prometheus knows no target of the run.",
            "none",
            instant(
                "A",
                f'count(ALERTS{{alertstate="firing", run="$run"}}) or 0 * count({series("up")})',
            ),
        ).thresholds(steps((None, "green"), (1, "red"))),
        number(
            "Interventions",
            "Commands that the trainer carried out since it started, from alerts and from operators.",
            "none",
            instant("A", f"sum(max by (action) ({_APPLIED}))"),
        ).thresholds(steps((None, "green"), (1, "orange"))),
        timeline(
            "States",
            "Which state the run was in, over time.",
            query("A", f"max by (state) ({series('train_run_state')}) == 1", "{{state}}"),
        ),
        timeline(
            "Alerts",
            "Which alerts of this run fired, over time.",
            query(
                "A",
                'max by (alertname, severity) (ALERTS{alertstate="firing", run="$run"})',
                "{{alertname}} ({{severity}})",
            ),
        ),
    ]
