"""Outcomes as a real controller measures them, by a real Prometheus."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.controller.stories import Prometheus, told_prometheus

from trainswitch_controller.cli.application import run

AHEAD = 60


@pytest.fixture(scope="module")
def prometheus() -> Iterator[Prometheus]:
    """One for the tests of this module."""
    with told_prometheus() as found:
        yield found


def _loss(before: int) -> float:
    """Return a loss that falls as a power of the step, is doubled for a minute, and then 5 % too high."""
    seconds = before - AHEAD  # before the alert's end, which is now
    course = float(4.0 * max(1, 1199 - before) ** -0.2)
    return course * (1.05 if seconds <= 0 else 2.0 if seconds < 60 else 1.0)


def test_a_recovery_is_measured_and_exported(
    home: Any,
    tools: Any,
    make_server: Callable[..., Any],
    prometheus: Prometheus,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """GPU-seconds are ranks times seconds; the loss is compared with its course before the onset."""
    story = prometheus.story(ahead=float(AHEAD))
    story.add("train_loss", _loss)
    story.add("train_world_size", 8.0)
    story.add(
        "train_loss_excess_sigmas", lambda before: 9.0 if AHEAD < before < AHEAD + 60 else 0.0, rank="1"
    )
    story.write()
    trainer = home.trainer(story.run)
    server = make_server(prometheus_url=prometheus.url)
    began = tools.now() - 20.0
    [outcome] = server.fire(tools.alert("TrainLossUnstable", run=story.run, starts_at=began))
    tools.wait_for(lambda: server.command(outcome["command_id"])["state"] == "written")
    trainer.poll()
    tools.wait_for(lambda: server.command(outcome["command_id"])["state"] == "applied")
    trainer.write(step=160)
    server.fire(tools.alert("TrainLossUnstable", run=story.run, starts_at=began, status="resolved"))
    tools.wait_for(lambda: server.command(outcome["command_id"])["outcome"])
    command = server.command(outcome["command_id"])
    [recovery] = command["recovery"]
    assert recovery["result"] == "resolved"
    assert command["outcome"]["gpu_seconds"] == pytest.approx(8 * recovery["seconds"])
    assert command["outcome"]["loss_ratio"] == pytest.approx(1.05, rel=0.005)
    assert (
        server.metric("recovery_gpu_seconds_total", action="reduce_lr") == command["outcome"]["gpu_seconds"]
    )
    assert server.metric("recovery_loss_ratio_count", action="reduce_lr") == 1
    token = f"--token-file={home.folder / 'operator.token'}"
    assert run(["commands", story.run, f"--controller=http://127.0.0.1:{server.port}", token]) == 0
    assert "loss 1.05 of its forecast" in capsys.readouterr().out


def test_a_run_that_prometheus_does_not_know_has_an_outcome_without_figures(
    home: Any, tools: Any, make_server: Callable[..., Any], prometheus: Prometheus
) -> None:
    """Nothing is made up."""
    trainer = home.trainer("unknown")
    server = make_server(prometheus_url=prometheus.url)
    began = tools.now() - 1.0
    [outcome] = server.fire(tools.alert("TrainLossUnstable", run="unknown", starts_at=began))
    tools.wait_for(lambda: server.command(outcome["command_id"])["state"] == "written")
    trainer.poll()
    tools.wait_for(lambda: server.command(outcome["command_id"])["state"] == "applied")
    server.fire(tools.alert("TrainLossUnstable", run="unknown", starts_at=began, status="resolved"))
    tools.wait_for(lambda: server.command(outcome["command_id"])["outcome"])
    found = server.command(outcome["command_id"])["outcome"]
    assert (found["gpu_seconds"], found["loss_ratio"]) == (None, None)
