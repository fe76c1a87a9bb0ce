"""The journal's outcomes: what an intervention whose alert has resolved has cost."""

from __future__ import annotations

from sqlalchemy import ForeignKey
from sqlalchemy.orm import Mapped, mapped_column

from trainswitch_controller.records import Record


class OutcomeRecord(Record):
    """Measured once, when the alert of an applied intervention had resolved."""

    __tablename__ = "outcomes"

    command_id: Mapped[str] = mapped_column(ForeignKey("commands.id"), primary_key=True)
    at: Mapped[float]
    gpu_seconds: Mapped[float | None]
    """Ranks of the run times the seconds from the intervention until its alert had resolved."""
    loss_ratio: Mapped[float | None]
    """Loss at that moment over what the course before the onset would have reached at the same step."""
