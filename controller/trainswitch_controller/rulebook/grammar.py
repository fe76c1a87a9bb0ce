"""The grammar of conditions: from a text to a `Condition`, or to the place where it is not understood."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Collection, Iterable
from decimal import Decimal
from importlib import resources
from typing import Any, cast

from lark import Lark, Token, Transformer, v_args
from lark.exceptions import UnexpectedCharacters, UnexpectedEOF, UnexpectedInput, UnexpectedToken, VisitError

from trainswitch_controller.rulebook import vocabulary
from trainswitch_controller.rulebook.condition import (
    SECONDS,
    Amount,
    Change,
    Clause,
    Comparison,
    Condition,
    CountUnit,
    NonFinite,
    Operator,
    Persistence,
    Reference,
    Relative,
    Sigmas,
    TimeUnit,
)
from trainswitch_controller.rulebook.quantities import CHINESE_NAMES

LONGEST_CONDITION = 500
"""Characters."""

_OPERATORS: dict[str, Operator] = {
    "ABOVE": ">",
    "AT_LEAST": ">=",
    "BELOW": "<",
    "AT_MOST": "<=",
    "EQUALS": "==",
}
_UNITS_OF_PERSISTENCE = {"TIMES", "STEPS", "EPOCHS", "EVALUATIONS", "SECONDS", "MINUTES", "HOURS"}
_WORD = re.compile(r"[A-Za-z0-9_.%]+|[\u4e00-\u9fff]{1,6}|\S")
_DESCRIBED = {
    "NAME": "a metric",
    "CHINESE_NAME": "",
    "PERCENTILE": "p95",
    "NUMBER": "a number",
    "SCALE": "",
    "UNIT": "a unit such as %, GB or ms",
    "$END": "the end",
    "THE": "",
    "__IGNORE_0": "",
}
"""Tokens that are no words, as they are called in a sentence; empty where they are not worth mentioning."""


class ConditionError(Exception):
    """A condition cannot be understood.

    Attributes:
        column: where in the text, counted from 0.
        message: one sentence that names the word and, where one is near, the right one.
    """

    def __init__(self, message: str, column: int) -> None:
        super().__init__(message)
        self.message = message
        self.column = column


def parse(text: str) -> Condition:
    """Return what a condition says.

    Raises:
        ConditionError: it cannot be understood, or contradicts itself.
    """
    if len(text) > LONGEST_CONDITION:
        raise ConditionError(
            f"the condition is longer than {LONGEST_CONDITION} characters: make several rules of it.", 0
        )
    try:
        tree = _parser().parse(vocabulary.ascii_forms(text))
        return _Meaning().transform(tree)
    except UnexpectedInput as error:
        raise _explained(error, text) from None
    except VisitError as error:
        if isinstance(error.orig_exc, ConditionError):
            raise error.orig_exc from None
        raise


@functools.cache
def _parser() -> Lark:
    source = resources.files(__package__).joinpath("grammar.lark").read_text(encoding="utf-8")
    terminals = [
        # "5 min" are minutes, though after a persistence the smallest value could follow.
        _terminal(name, words, priority=3 if name in _UNITS_OF_PERSISTENCE else 2)
        for name, words in vocabulary.WORDS.items()
    ]
    terminals += [
        _terminal("SCALE", vocabulary.SCALES),
        _terminal("UNIT", vocabulary.UNITS, flags=""),
        _terminal("CHINESE_NAME", CHINESE_NAMES),
    ]
    return Lark("\n".join([source, *terminals]), start="condition", parser="lalr", propagate_positions=True)


def _terminal(name: str, words: Iterable[str], *, flags: str = "i", priority: int = 2) -> str:
    pattern = vocabulary.pattern_of(words).replace("/", r"\/")
    return f"{name}.{priority}: /{pattern}/{flags}"


@v_args(inline=True)
class _Meaning(Transformer[Token, Condition]):
    """Turns the syntax tree into a `Condition`, and refuses what is grammatical and means nothing."""

    def condition(self, *parts: Any) -> Condition:
        clauses = tuple(part for part in parts if isinstance(part, Clause))
        return Condition(clauses)

    @v_args(inline=False, meta=True)
    def clause(self, meta: Any, parts: list[Any]) -> Clause:
        found: dict[str, Any] = {"column": meta.start_pos}
        for part in parts:
            if isinstance(part, Persistence):
                found["persistence"] = part
            elif isinstance(part, dict):
                found |= part
            elif part is not None:
                found["predicate"] = part
        return Clause(**found)

    def subject(self, *parts: dict[str, Any]) -> dict[str, Any]:
        return {key: value for part in parts for key, value in part.items()}

    def metric(self, name: Token) -> dict[str, Any]:
        return {"metric": str(name), "metric_column": name.start_pos}

    def statistic(self, word: Token) -> dict[str, Any]:
        return {"statistic": str(word).lower() if word.type == "PERCENTILE" else word.type.lower()}

    @v_args(inline=False)
    def comparison(self, parts: list[Any]) -> Comparison:
        operator, limit = parts[-2:]
        return Comparison(operator, limit)

    def equality(self, _is: Token, amount: Amount) -> Comparison:
        return Comparison("==", amount)

    def operator(self, word: Token) -> Operator:
        return _OPERATORS[word.type]

    def sigmas(self, number: Token, _word: Token) -> Sigmas:
        return Sigmas(_number(number))

    @v_args(inline=False)
    def multiple(self, parts: list[Any]) -> Relative:
        reference = next(part for part in parts if isinstance(part, _Reference))
        amount = next((part for part in parts if isinstance(part, Amount)), None)
        number = next((part for part in parts if isinstance(part, Token) and part.type == "NUMBER"), None)
        factor = 1.0
        if number is not None:
            factor = _number(number)
        elif amount is not None:
            if amount.unit not in {"%", ""}:
                raise ConditionError(
                    f"{str(amount)!r} of the {reference.name} means nothing: write a factor such as '3x', or "
                    "a percentage.",
                    reference.column,
                )
            factor = amount.number / (100.0 if amount.unit == "%" else 1.0)
        return Relative(factor, reference.name)

    def reference(self, word: Token) -> _Reference:
        return _Reference(word)

    @v_args(inline=False)
    def amount(self, parts: list[Token]) -> Amount:
        scale = next((vocabulary.SCALES[str(part)] for part in parts if part.type == "SCALE"), 1.0)
        unit = next((str(part) for part in parts if part.type == "UNIT"), "")
        return Amount(_number(parts[0], scale), unit)

    @v_args(inline=False)
    def change(self, parts: list[Any]) -> Change:
        references = [part for part in parts if isinstance(part, _Reference)]
        spans = [part for part in parts if isinstance(part, _Span)]
        direction = next(part for part in parts if part in ("falls", "rises"))
        columns = [one.column for one in references] + [one.column for one in spans]
        if len(columns) > 1:
            raise ConditionError(
                "a change is either from one reference or within one time: leave one of them out.",
                max(columns),
            )
        return Change(
            direction=direction,
            operator=next((part for part in parts if part in (">", ">=")), ">"),
            amount=next(part for part in parts if isinstance(part, Amount)),
            reference=references[0].name if references else None,
            within=spans[0].seconds if spans else None,
        )

    def direction(self, word: Token) -> str:
        return word.type.lower()

    def more(self, word: Token) -> str:
        return _OPERATORS[word.type]

    def since(self, _word: Token, reference: _Reference) -> _Reference:
        return reference

    @v_args(inline=False)
    def span_before(self, parts: list[Any]) -> _Span:
        return next(part for part in parts if isinstance(part, _Span))

    span_after = span_before

    def duration(self, number: Token, unit: Token) -> _Span:
        seconds = _number(number) * SECONDS[unit.type.lower()]
        if not 1.0 <= seconds <= 86400.0:
            raise ConditionError(f"{number} {unit} is no time between a second and a day.", _start(number))
        return _Span(seconds, _start(number))

    @v_args(inline=False)
    def nonfinite(self, _parts: list[Token]) -> NonFinite:
        return NonFinite()

    @v_args(inline=False)
    def persistence(self, parts: list[Any]) -> Persistence:
        number = next(part for part in parts if isinstance(part, Token) and part.type == "NUMBER")
        unit = next((part for part in parts if isinstance(part, _Unit)), _Unit("times"))
        count = _number(number)
        if unit.name in SECONDS:
            if not 1.0 <= count * SECONDS[unit.name] <= 86400.0:
                raise ConditionError(
                    f"{number} {unit.name} is no time between a second and a day.", _start(number)
                )
        elif not (1.0 <= count <= 1e6 and count.is_integer()):
            raise ConditionError(
                f"{str(number)!r} is no number of {unit.name}: write a whole one from 1 to 1000000.",
                _start(number),
            )
        return Persistence(count, cast("CountUnit | TimeUnit", unit.name))

    def unit(self, word: Token) -> _Unit:
        return _Unit(word.type.lower())


class _Unit:
    def __init__(self, name: str) -> None:
        self.name = name


class _Reference:
    def __init__(self, word: Token) -> None:
        self.name = cast("Reference", word.type.lower())
        self.column = _start(word)


class _Span:
    def __init__(self, seconds: float, column: int) -> None:
        self.seconds = seconds
        self.column = column


def _start(token: Token) -> int:
    return token.start_pos or 0


def _number(token: Token, scale: float = 1.0) -> float:
    value = float(Decimal(str(token).replace(",", "").replace("_", "")) * Decimal(repr(scale)))
    if not math.isfinite(value):
        raise ConditionError(f"{str(token)!r} is too large for a number.", _start(token))
    return value


def _explained(error: UnexpectedInput, text: str) -> ConditionError:
    """Return the sentence for a place where the grammar cannot go on."""
    allowed = _allowed(error)
    at: int | None = error.pos_in_stream
    column = len(text) if at is None else at
    ended = isinstance(error, UnexpectedEOF) or (
        isinstance(error, UnexpectedToken) and error.token.type == "$END"
    )
    if ended or not text[column:].strip():
        return ConditionError(f"the condition ends too soon: {_expected(allowed)}.", len(text))
    match = _WORD.search(text, column)
    word = match.group() if match else text[column]
    if word.lower() in _NOT_OFFERED:
        return ConditionError(f"{word!r} is not understood: {_NOT_OFFERED[word.lower()]}.", column)
    near = vocabulary.nearest(word, _spellings(allowed)) or vocabulary.nearest(
        word, _spellings(vocabulary.WORDS)
    )
    hint = f"did you mean {near!r}?" if near and near.lower() != word.lower() else f"{_expected(allowed)}."
    return ConditionError(f"{word!r} is not understood here: {hint}", column)


_NOT_OFFERED = {
    "or": "write one rule for each alternative",
    "或": "write one rule for each alternative",
    "或者": "write one rule for each alternative",
    "not": "write the comparison that is meant",
    "between": "write two comparisons with 'and'",
}


def _allowed(error: UnexpectedInput) -> list[str]:
    if isinstance(error, UnexpectedCharacters):
        return sorted(error.allowed or ())
    if isinstance(error, UnexpectedToken):
        return sorted(error.accepts or error.expected)
    return []


def _spellings(terminals: Iterable[str]) -> list[str]:
    return [word for name in terminals if name != "THE" for word in vocabulary.WORDS.get(name, ())]


def _expected(terminals: Collection[str]) -> str:
    if "NAME" in terminals:
        return "expected a metric, a statistic such as 'max', or a comparison such as '> 5' or 'drops > 5%'"
    named = [
        _DESCRIBED[name] if name in _DESCRIBED else repr(vocabulary.WORDS[name][0])
        for name in terminals
        if name in _DESCRIBED or name in vocabulary.WORDS
    ]
    named = [one for one in dict.fromkeys(named) if one]
    return f"expected {', '.join(named)}" if named else "nothing fits here"
