"""Reading settings: a section, and how what is wrong with one becomes one sentence."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, ValidationError

from trainswitch.errors import ConfigError


class Section(BaseModel):
    """Base of every section of the settings: immutable, finite numbers only, unknown keys refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


AnySection = TypeVar("AnySection", bound=Section)


def read_section(
    section: type[AnySection],
    values: Mapping[str, Any],
    source: str,
    known: Mapping[str, str],
    prefix: str = "",
) -> AnySection:
    """Return the section that `values` describe.

    Args:
        section: what to read.
        values: setting → value.
        source: where they were found, for the sentence about what is wrong.
        known: setting → where it belongs, of all settings that could have been meant.
        prefix: of the settings' names in that sentence.

    Raises:
        ConfigError: a setting is unknown, misplaced or out of bounds.
    """
    try:
        return section.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        where = prefix + ".".join(str(part) for part in first["loc"])
        if first["type"] == "extra_forbidden":
            key = str(first["loc"][-1])
            raise ConfigError(f"{source}: {where!r} is not a setting{nearest(key, known)}.") from None
        where = where.removesuffix(".") or "settings"
        if first["type"] == "value_error":  # a sentence of ours, which has all there is to say
            sentence = first["msg"].removeprefix("Value error, ")
            raise ConfigError(f"{source}: {where}: {sentence}.") from None
        got = str(first["input"])[:80]
        raise ConfigError(f"{source}: {where} is not valid: {first['msg']} (got {got!r}).") from None


def nearest(key: str, known: Mapping[str, str]) -> str:
    """Return the end of a sentence about an unknown key: what was probably meant, and where it belongs."""
    if key in known:
        return f": it belongs at {known[key]!r}"
    near = difflib.get_close_matches(key, known, n=1)
    return f": did you mean {known[near[0]]!r}?" if near else f": use one of {', '.join(known)}"


def settings_of(section: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield (setting, where it belongs) of `section` and of the sections within it."""
    for name, field in section.model_fields.items():
        yield name, prefix + name
        for inner in _sections_in(field.annotation):
            yield from settings_of(inner, f"{prefix}{name}.")


def _sections_in(annotation: Any) -> Iterator[type[BaseModel]]:
    for candidate in (annotation, *get_args(annotation)):
        if isinstance(candidate, type) and issubclass(candidate, BaseModel):
            yield candidate
