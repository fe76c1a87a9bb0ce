"""What may stand in a path or a query of the API; anything else gets 422 before it reaches the database."""

from __future__ import annotations

from typing import Annotated

from fastapi import Path, Query

from trainswitch.intervention.commands import RUN_NAME

_STORABLE = r"^[^\x00]+$"
"""PostgreSQL takes no NUL, neither to store nor to look for."""

RunQuery = Annotated[str | None, Query(pattern=f"^{RUN_NAME.pattern}$", description="Of this run only.")]
RunPath = Annotated[str, Path(description="Name of a run.")]
Limit = Annotated[int, Query(ge=1, le=1000, description="How many, newest first.")]
CommandId = Annotated[str, Path(max_length=128, pattern=_STORABLE, description="Id of a command.")]
AlertName = Annotated[str, Path(max_length=1000, pattern=_STORABLE, description="Name of an alert.")]
