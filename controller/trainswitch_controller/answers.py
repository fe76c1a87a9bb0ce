"""What the API answers, for its description. Times are Unix seconds; answers may hold more than this."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, Field

from trainswitch.intervention.control_file import StatusFile
from trainswitch_controller.decide import Outcome
from trainswitch_controller.records import CommandState, RecoveryResult


class Fault(BaseModel):
    """Every error."""

    error: str
    """One sentence: the thing, the value, the way out."""


class Health(BaseModel):
    """That the controller is alive, or ready."""

    status: Literal["healthy", "ready"]


class Judged(BaseModel):
    """What became of one alert."""

    alertname: str
    run: str | None
    outcome: Outcome
    reason: str
    command_id: str | None


class Receipt(BaseModel):
    """What became of a delivery, once it is journaled."""

    delivery: int
    outcomes: list[Judged]


class RefusedReceipt(Receipt):
    """A delivery, journaled, in which no alert has a usable run."""

    error: str


class Relayed(BaseModel):
    """A webhook that a gateway has taken."""

    relay: str
    result: Literal["sent"]


class Recovery(BaseModel):
    """What came of an intervention."""

    at: float
    result: RecoveryResult
    seconds: float
    steps: int | None


class CommandAnswer(BaseModel):
    """One command."""

    id: str
    run: str
    seq: int | None
    """Null until it is approved."""
    epoch: int | None
    action: str
    params: dict[str, Any]
    reason: str
    source: Literal["operator", "alert"]
    alertname: str | None
    episode_id: int | None
    state: CommandState
    created_at: float
    expires_at: float
    written_at: float | None
    finished_at: float | None
    step: int | None
    detail: str
    recovery: list[Recovery]


class OneCommand(BaseModel):
    """An answer that holds one command."""

    command: CommandAnswer


class Commands(BaseModel):
    """Commands, newest first."""

    commands: list[CommandAnswer]


class RunRow(BaseModel):
    """One run with what its trainer said last."""

    run: str
    state: str | None
    step: int | None
    updated_at: float | None
    applied_seq: int | None
    error: str | None
    """Why its ``status.json`` cannot be used."""
    awaiting_approval: int


class Runs(BaseModel):
    """Every run that has a folder."""

    runs: list[RunRow]


class Run(BaseModel):
    """One run."""

    run: str
    status: StatusFile | None
    status_error: str | None
    commands: list[CommandAnswer]
    """Those that the trainer has not answered."""
    unapproved: list[CommandAnswer]
    """Those of the last day that nobody approved."""


class DecisionAnswer(BaseModel):
    """What was decided about an alert, and why."""

    at: float
    outcome: Outcome
    rung: int | None
    action: str | None
    params: dict[str, Any]
    reason: str
    command_id: str | None


class EpisodeAnswer(BaseModel):
    """One alert from its first firing until it resolves."""

    id: int
    fingerprint: str
    starts_at: float
    alertname: str
    run: str
    severity: str
    labels: dict[str, str]
    annotations: dict[str, str]
    state: Literal["firing", "resolved"]
    received_at: float
    resolved_at: float | None
    decisions: list[DecisionAnswer]


class Episodes(BaseModel):
    """Episodes, newest first."""

    episodes: list[EpisodeAnswer]


class Incidents(BaseModel):
    """When the trouble behind alerts began and who is suspected, newest first."""

    incidents: list[dict[str, Any]]


class Explained(BaseModel):
    """What would happen if an alert fired now."""

    explanation: dict[str, Any] = Field(min_length=1)


class Anything(BaseModel):
    """An answer that is not described further."""
