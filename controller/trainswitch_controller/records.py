"""The journal's tables: deliveries, episodes, decisions, commands, answers, recoveries, controllers' starts.

Deliveries, decisions, answers, recoveries and starts are only ever added. An episode and a command each carry
their present state besides; how they came to it is in the other tables.
"""

from __future__ import annotations

from typing import Any, Literal, get_args

from sqlalchemy import JSON, BigInteger, Double, ForeignKey, Index, String, Text, UniqueConstraint
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from trainswitch_controller.decide import Cause, Outcome

SCHEMA_VERSION = 1
"""Of these tables; a journal that holds a higher one was written by a newer trainswitch."""

CommandState = Literal[
    "awaiting_approval",
    "rejected",
    "pending",
    "written",
    "applied",
    "refused",
    "failed",
    "expired",
    "superseded",
]
COMMAND_STATES: tuple[CommandState, ...] = get_args(CommandState)
OPEN_STATES: tuple[CommandState, ...] = ("pending", "written")
"""States in which a command belongs into ``commands.json``."""
UNFINISHED_STATES: tuple[CommandState, ...] = ("awaiting_approval", *OPEN_STATES)
NEVER_CARRIED_OUT: tuple[CommandState, ...] = ("rejected", "expired", "superseded")
RecoveryResult = Literal["resolved", "returned", "escalated"]
"""What came of an intervention: its trouble ended; came back; or lasted until the next rung was taken."""
RECOVERY_RESULTS: tuple[RecoveryResult, ...] = get_args(RecoveryResult)

_ENUM = String(32)


class Record(DeclarativeBase):
    """Base of the journal's tables; times are Unix seconds in double precision."""

    type_annotation_map = {  # noqa: RUF012 - SQLAlchemy's own contract
        float: Double,
        str: Text,
        dict[str, Any]: JSON,
        dict[str, str]: JSON,
        CommandState: _ENUM,
        Outcome: _ENUM,
        Cause: _ENUM,
        RecoveryResult: _ENUM,
    }


class StartRecord(Record):
    """One start of a controller: its fencing epoch, and the policy it judged by."""

    __tablename__ = "starts"

    epoch: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    at: Mapped[float]
    schema_version: Mapped[int]
    policy_sha256: Mapped[str]


class DeliveryRecord(Record):
    """One webhook request that was authenticated and understood."""

    __tablename__ = "deliveries"

    id: Mapped[int] = mapped_column(primary_key=True)
    received_at: Mapped[float]
    receiver: Mapped[str]
    group_key: Mapped[str]
    alerts: Mapped[int]
    truncated_alerts: Mapped[int]


class EpisodeRecord(Record):
    """One alert from its first firing until it resolves."""

    __tablename__ = "episodes"
    __table_args__ = (
        UniqueConstraint("fingerprint", "starts_at"),
        Index("ix_episodes_run", "run"),
        Index("ix_episodes_trouble", "run", "alertname", "last_heard_at"),
    )

    id: Mapped[int] = mapped_column(primary_key=True)
    fingerprint: Mapped[str] = mapped_column(String(128))
    starts_at: Mapped[float]
    alertname: Mapped[str]
    run: Mapped[str] = mapped_column(String(128))
    severity: Mapped[str]
    labels: Mapped[dict[str, str]]
    annotations: Mapped[dict[str, str]]
    received_at: Mapped[float]
    last_heard_at: Mapped[float]
    """When a delivery last mentioned it."""
    resolved_at: Mapped[float | None]
    """When the controller was told that it resolved."""
    settled: Mapped[bool] = mapped_column(default=False)
    """It was decided for good; see `decide.SETTLING`."""
    retry_at: Mapped[float | None] = mapped_column(index=True)
    """When it is to be decided again, if it still fires then."""


class CommandRecord(Record):
    """One command and its present state."""

    __tablename__ = "commands"
    __table_args__ = (
        UniqueConstraint("run", "seq"),
        UniqueConstraint("episode_id", "rung"),
        Index("ix_commands_state", "state"),
        Index("ix_commands_created_at", "created_at"),
    )

    id: Mapped[str] = mapped_column(String(128), primary_key=True)
    run: Mapped[str] = mapped_column(String(128))
    seq: Mapped[int | None] = mapped_column(BigInteger)
    """None until approved: a number that waits would be overtaken, and the trainer would never take it."""
    epoch: Mapped[int | None] = mapped_column(BigInteger)
    """Of the controller that last wrote it into ``commands.json``."""
    action: Mapped[str]
    params: Mapped[dict[str, Any]]
    reason: Mapped[str]
    cause: Mapped[Cause]
    alertname: Mapped[str | None]
    episode_id: Mapped[int | None] = mapped_column(ForeignKey("episodes.id"))
    rung: Mapped[int | None]
    resume_when_resolved: Mapped[bool] = mapped_column(default=False)
    state: Mapped[CommandState]
    created_at: Mapped[float]
    issued_at: Mapped[float | None]
    """When it became due: at once, or when it was approved."""
    expires_at: Mapped[float]
    written_at: Mapped[float | None]
    finished_at: Mapped[float | None]
    step: Mapped[int | None] = mapped_column(BigInteger)
    detail: Mapped[str] = mapped_column(default="")


class DecisionRecord(Record):
    """What was decided about one alert at one moment, and why."""

    __tablename__ = "decisions"

    id: Mapped[int] = mapped_column(primary_key=True)
    at: Mapped[float]
    delivery_id: Mapped[int | None] = mapped_column(ForeignKey("deliveries.id"), index=True)
    """None where a cooldown ended and the controller decided again by itself."""
    episode_id: Mapped[int | None] = mapped_column(ForeignKey("episodes.id"), index=True)
    """None for the Watchdog and for alerts without a valid run."""
    alertname: Mapped[str]
    run: Mapped[str | None]
    outcome: Mapped[Outcome]
    reason: Mapped[str]
    rung: Mapped[int | None]
    action: Mapped[str | None]
    params: Mapped[dict[str, Any]]
    command_id: Mapped[str | None] = mapped_column(ForeignKey("commands.id"))


class AnswerRecord(Record):
    """What a trainer answered to one command, as ``status.json`` said it."""

    __tablename__ = "answers"

    id: Mapped[int] = mapped_column(primary_key=True)
    command_id: Mapped[str] = mapped_column(ForeignKey("commands.id"), index=True)
    read_at: Mapped[float]
    session: Mapped[str]
    """Of the trainer whose ``status.json`` had the answer; an earlier session may have given it."""
    result: Mapped[CommandState]
    step: Mapped[int] = mapped_column(BigInteger)
    at: Mapped[float]
    detail: Mapped[str]


class RecoveryRecord(Record):
    """What came of one intervention that was applied; each result at most once."""

    __tablename__ = "recoveries"
    __table_args__ = (UniqueConstraint("command_id", "result"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    command_id: Mapped[str] = mapped_column(ForeignKey("commands.id"))
    alertname: Mapped[str]
    action: Mapped[str]
    at: Mapped[float]
    result: Mapped[RecoveryResult]
    seconds: Mapped[float]
    """From the moment at which it was applied."""
    steps: Mapped[int | None] = mapped_column(BigInteger)
    """From the step at which it was applied, after a rollback the loaded one; None where nobody knows."""
