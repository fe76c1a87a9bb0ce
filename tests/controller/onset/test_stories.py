"""Runs whose trouble has a known cause, told to a real Prometheus: the controller's API names it first."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

IncidentOf = Callable[..., dict[str, Any]]


def first(incident: dict[str, Any]) -> tuple[str, str]:
    """Return kind and name of the first suspect."""
    return incident["suspects"][0]["kind"], incident["suspects"][0]["name"]


def signals(incident: dict[str, Any]) -> list[str]:
    """Return what left its band, in the order of time, each signal once."""
    return list(dict.fromkeys(one["signal"] for one in incident["departures"]))


def test_a_learning_rate_that_creeps_up_before_an_explosion(onset: Any, incident_of: IncidentOf) -> None:
    """It is suspected before the layers that exploded, and the onset is where it left its band."""
    story = onset.told(
        train_learning_rate={"group=0": lambda before: 1e-3 * (1.0 + max(0, 120 - before) / 60)},
        train_grad_norm_excess_ratio=onset.jump(10, 20.0, 1.0),
        train_layer_grad_norm={f"layer=blocks.{n}": onset.jump(8 - n, 30.0 + n, 1.0) for n in range(4)},
        train_loss_excess_sigmas=onset.jump(5, 9.0),
    )
    incident = incident_of(story)
    assert first(incident) == ("learning_rate", "group 0")
    assert signals(incident) == ["learning_rate", "gradient_excess", "layer_gradient", "loss_excess"]
    assert 116 <= incident["suspects"][0]["lead_seconds"] <= 120  # its beginning, not a rise by half
    assert 1199 - 124 <= incident["onset_step"] <= 1199 - 120
    assert incident["onset_at"] == story.end - incident["suspects"][0]["lead_seconds"]


def test_a_layer_that_grows_before_the_others(onset: Any, incident_of: IncidentOf) -> None:
    """The layer that grew first is named first, though others grew more; two signs make one suspect."""
    layers = {f"layer=blocks.{n}": onset.jump(6, 80.0, 1.0) for n in (0, 1, 2)}
    story = onset.told(
        train_layer_grad_norm={**layers, "layer=blocks.3": onset.jump(60, 12.0, 1.0)},
        train_layer_update_ratio={"layer=blocks.3": onset.jump(58, 0.1, 0.001)},
        train_loss_excess_sigmas=onset.jump(5, 9.0),
    )
    incident = incident_of(story)
    assert first(incident) == ("layer", "blocks.3")
    assert incident["suspects"][0]["signals"] == ["layer_gradient", "layer_update"]
    assert "rose to 12, from 1" in incident["suspects"][0]["detail"]
    assert 1199 - 64 <= incident["onset_step"] <= 1199 - 61


def test_a_rank_that_all_others_wait_for(onset: Any, incident_of: IncidentOf) -> None:
    """The one rank that does not wait in collective operations is the slow one."""
    story = onset.story(healthy=False)
    story.add("train_step", lambda before: 1199 - before)
    for rank in range(4):
        late = onset.jump(90, 0.05 if rank == 2 else 0.5, 0.05)
        story.count("train_step_seconds_count", lambda _: 1.0, rank=str(rank))
        story.count("train_step_seconds_sum", lambda before: 1.0 if before <= 90 else 0.55, rank=str(rank))
        story.count("train_collective_seconds_sum", late, rank=str(rank), op="all_reduce")
    story.write()
    incident = incident_of(story, "TrainStraggler")
    assert [one["name"] for one in incident["suspects"]] == ["rank 2"]
    assert incident["suspects"][0]["signals"] == ["rank_slow"]
    assert 70 <= incident["suspects"][0]["lead_seconds"] <= 90
    assert "step_time" in signals(incident)


def test_storage_that_stalls(onset: Any, incident_of: IncidentOf) -> None:
    """Checkpoints that take far longer than usual are the suspect, and the steps that wait are a symptom."""
    story = onset.story()
    story.count("train_checkpoint_seconds_count", lambda before: 1.0 if before % 60 == 0 else 0.0)
    story.count(
        "train_checkpoint_seconds_sum",
        lambda before: 0.0 if before % 60 else 2.0 if before > 100 else 60.0,
    )
    story.count("train_step_seconds_count", lambda before: 1.0)
    story.count("train_step_seconds_sum", lambda before: 0.3 if before > 50 else 0.9)
    story.write()
    incident = incident_of(story, "TrainThroughputLow")
    assert first(incident) == ("storage", "checkpoints of rank 0")
    assert incident["suspects"][0]["lead_seconds"] >= 58
    assert signals(incident) == ["checkpoint_time", "step_time"]


def test_a_loader_that_stalls_is_suspected_and_costs_no_progress(onset: Any, incident_of: IncidentOf) -> None:
    """Waiting for data harms no weights: it is a suspect, but the onset is that of the loss."""
    story = onset.story()
    story.add("train_loss_excess_sigmas", onset.jump(20, 9.0), rank="1")
    story.count("train_phase_seconds_total", lambda before: 0.6 if before <= 200 else 0.02, phase="data")
    story.count("train_phase_seconds_total", lambda before: 0.4 if before <= 200 else 0.98, phase="train")
    story.write()
    incident = incident_of(story)
    assert first(incident) == ("data", "loader of rank 0")
    assert incident["suspects"][0]["lead_seconds"] > 150
    assert incident["onset_at"] >= story.end - 20
    assert 1199 - 24 <= incident["onset_step"] <= 1199 - 22


def test_one_bad_batch(onset: Any, incident_of: IncidentOf) -> None:
    """One non-finite step out of nothing is a batch's doing: NaN in every layer accuses none of them."""
    story = onset.told(
        train_nonfinite_total={"source=loss": onset.jump(1, 1.0), "source=grad": onset.jump(1, 1.0)},
        train_layer_grad_norm={
            "layer=a": onset.jump(1, math.inf, 1.0),
            "layer=b": onset.jump(1, math.inf, 1.0),
        },
    )
    incident = incident_of(story)
    assert first(incident) == ("batch", "steps 1198 to 1199")
    assert len(incident["suspects"]) == 1
    assert incident["onset_step"] == 1196


def test_a_non_finite_step_at_the_end_of_a_growing_layer_is_no_batch(
    onset: Any, incident_of: IncidentOf
) -> None:
    """Where something that harms the weights came before, the batch is not to blame."""
    story = onset.told(
        train_nonfinite_total={"source=loss": onset.jump(1, 1.0)},
        train_layer_grad_norm={"layer=a": onset.jump(40, 50.0, 1.0)},
    )
    incident = incident_of(story)
    assert [one["kind"] for one in incident["suspects"]] == ["layer"]


def test_a_layer_that_jumped_and_came_back_before_it_dates_nothing(
    onset: Any, incident_of: IncidentOf
) -> None:
    """Single layers jump now and then: a rollback because of a bad batch costs no half minute for it."""
    story = onset.told(
        train_nonfinite_total={"source=loss": onset.jump(1, 1.0)},
        train_layer_grad_norm={"layer=a": lambda before: 5.0 if 30 < before < 40 else 1.0},
        train_layer_update_ratio={"layer=b": lambda before: 5.0 if 10 < before < 14 else 1.0},
    )
    incident = incident_of(story)
    assert first(incident) == ("batch", "steps 1198 to 1199")
    assert incident["onset_step"] == 1196


def test_a_gap_in_the_scrapes_ends_no_growth_of_a_layer(onset: Any, incident_of: IncidentOf) -> None:
    """Only samples within the band say that a layer has come back; none at all say nothing."""
    story = onset.told(
        train_layer_grad_norm={
            "layer=a": lambda before: math.nan if 20 < before < 40 else 9.0 if before <= 50 else 1.0
        },
    )
    assert 48 <= incident_of(story)["departures"][0]["lead_seconds"] <= 50


def test_an_error_of_a_gpu_is_named_before_what_it_broke(onset: Any, incident_of: IncidentOf) -> None:
    """Cards are asked every few seconds, so an XID seen after the layers is the cause all the same."""
    story = onset.story()
    story.add("train_layer_grad_norm", onset.jump(25, 50.0, 1.0), layer="a")
    story.add("train_gpu_xid_timestamp_seconds", onset.jump(20, story.end - 26, 0.0), gpu="5", xid="95")
    story.write()
    incident = incident_of(story)
    assert first(incident) == ("gpu", "GPU 5 of rank 0")
    assert incident["suspects"][0]["detail"] == "reported XID 95"
    assert signals(incident) == ["layer_gradient", "gpu_xid"]


def test_a_healthy_run_accuses_nobody(onset: Any, incident_of: IncidentOf) -> None:
    """What was outside its band all the time is no news, and neither is what was outside it long ago."""
    story = onset.told(
        train_gpu_temperature_celsius={"gpu=0": 95.0},
        train_layer_grad_norm={"layer=a": lambda before: 40.0 if 400 < before < 450 else 1.0},
    )
    incident = incident_of(story)
    assert (incident["onset_at"], incident["onset_step"], incident["suspects"]) == (None, None, [])


def test_layers_that_drift_or_scatter_by_themselves_are_not_accused(
    onset: Any, incident_of: IncidentOf
) -> None:
    """A norm that grows eightfold over ten minutes, and one that is five times as large every few seconds."""
    story = onset.told(
        train_layer_grad_norm={
            "layer=drifts": lambda before: 8.0 ** (max(0.0, 600.0 - before) / 600.0),
            "layer=scatters": lambda before: 5.0 if before % 7 < 3 else 1.0,
            "layer=jumps": onset.jump(10, 8.0, 1.0),
        },
    )
    assert [one["name"] for one in incident_of(story)["suspects"]] == ["jumps"]


def test_a_schedule_that_warms_up_is_not_accused_but_a_jump_is(onset: Any, incident_of: IncidentOf) -> None:
    """A rate that rises steadily scatters by itself; a constant one that jumps does not."""
    story = onset.told(
        train_learning_rate={
            "group=0": lambda before: 1e-3 * (1200 - before) / 1200,
            "group=1": onset.jump(30, 1e-2, 1e-3),
        },
    )
    assert [one["name"] for one in incident_of(story)["suspects"]] == ["group 1"]


def test_a_gap_in_the_scrapes_ends_no_trouble(onset: Any, incident_of: IncidentOf) -> None:
    """A signal that was outside before a gap of some seconds and after it left its band before the gap."""
    story = onset.told(
        train_loss_excess_sigmas=lambda before: math.nan if 30 < before < 50 else 9.0 if before <= 70 else 0.0
    )
    incident = incident_of(story)
    assert 68 <= incident["departures"][0]["lead_seconds"] <= 70


def test_a_rollback_since_the_onset_leaves_only_what_is_before_its_step(
    onset: Any, incident_of: IncidentOf
) -> None:
    """Where the run has gone back to an earlier step, what follows that one is from after the onset, too."""
    story = onset.told(
        train_step=lambda before: 1199 - before if before > 40 else 1100 - before,
        train_loss_excess_sigmas=onset.jump(60, 9.0),
    )
    assert incident_of(story)["onset_step"] == 1059
