"""What every validated document of the controller shares: no unknown keys, and errors of one sentence."""

from __future__ import annotations

import difflib
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError, model_validator
from pydantic_core import PydanticCustomError


def storable(text: str) -> str:
    """Return `text` with NUL replaced by U+FFFD: the one character that PostgreSQL cannot store."""
    return text.replace("\x00", "\ufffd")


Text = Annotated[str, AfterValidator(storable)]
"""A string that any journal can store."""


class Strict(BaseModel):
    """Base of the documents that people write: unknown keys are refused, with the nearest known one."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, populate_by_name=False)

    @model_validator(mode="before")
    @classmethod
    def _known_keys(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        known = [field.alias or name for name, field in cls.model_fields.items()]
        for key in value:
            if key not in known:
                near = difflib.get_close_matches(str(key), known, n=1)
                hint = f"did you mean '{near[0]}'?" if near else f"use one of {', '.join(known)}."
                raise PydanticCustomError(
                    "unknown_key", "{key} is not a known key: {hint}", {"key": repr(key)[:80], "hint": hint}
                )
        return value


def first_fault(error: ValidationError) -> str:
    """Return the first fault of `error` as one sentence: where, what was found, and what belongs there."""
    fault = error.errors(include_url=False)[0]
    where = ".".join(_shown(part) for part in fault["loc"])
    message = fault["msg"].removeprefix("Value error, ").rstrip(".")
    end = "" if message.endswith("?") else "."
    if fault["type"] in {"unknown_key", "json_invalid"}:
        return f"{where}: {message}{end}" if where else f"{message}{end}"
    if fault["type"] == "missing":
        return f"{where!r} is missing."
    if not where:
        return f"{message}{end}"
    return f"{where} = {repr(fault.get('input'))[:80]}: {message}{end}"


def _shown(part: int | str) -> str:
    """Return one part of a place; keys that others chose must not break a line of the log."""
    text = str(part)[:80]
    return text if text.isprintable() else repr(text)
