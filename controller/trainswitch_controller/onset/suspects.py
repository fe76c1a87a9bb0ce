"""Who is suspected, in order: a pure function of what left its band."""

from __future__ import annotations

import dataclasses
import math
import string
from collections.abc import Sequence
from typing import Any

from trainswitch_controller.onset.departures import Departure
from trainswitch_controller.onset.signals import SYMPTOM, Signal, SignalFile

MAX_SUSPECTS = 10
_MAX_DEPARTURES = 50
_MAX_TEXT = 200


@dataclasses.dataclass(frozen=True)
class Finding:
    """What an analysis found; empty where nothing had left its band."""

    onset_at: float | None
    """Unix seconds at which the trouble began: of the weights where they are harmed, else of the pace."""
    onset_step: int | None
    """Highest step whose state is surely from before the onset."""
    departures: tuple[dict[str, Any], ...] = ()
    """What left its band, in the order of time."""
    suspects: tuple[dict[str, Any], ...] = ()
    """``kind``, ``name``, ``detail``, ``lead_seconds`` before the alert, ``signals``; the first one first."""


def judge(signals: SignalFile, departures: Sequence[Departure], at: float) -> Finding:
    """Return the onset and the ranked suspects of an alert that began to fire at `at` (Unix seconds).

    Args:
        signals: in the order of causality.
        departures: what was outside its band, as `find_departures` returns it.
        at: when the alert began to fire.
    """
    table = signals.signals
    weights = [one for one in departures if table[one.signal].harms == "weights"]
    first = min(weights or departures, key=lambda one: one.at, default=None)
    known = [
        one.step for one in departures if first is not None and one.at == first.at and one.step is not None
    ]
    shown = departures[:_MAX_DEPARTURES]
    return Finding(
        onset_at=first.at if first is not None else None,
        # Loss and gradients of a step are those of the state before its update, which the next one shows.
        onset_step=max(0, min(known) - 1) if known else None,
        departures=tuple(_departure_view(table[one.signal], one, at) for one in shown),
        suspects=tuple(_suspects(table, departures, at)),
    )


def _suspects(table: dict[str, Signal], departures: Sequence[Departure], at: float) -> list[dict[str, Any]]:
    ranked = sorted(
        (one for one in departures if _suspicious(table, one, departures)),
        key=lambda one: (one.at - table[one.signal].head_start, one.place, -one.excess),
    )
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for one in ranked:
        signal = table[one.signal]
        name = _text(signal.name, signal, one)
        known = found.get((signal.kind, name))
        if known is None:
            found[signal.kind, name] = {
                "kind": signal.kind,
                "name": name,
                "detail": _text(signal.detail, signal, one),
                "lead_seconds": round(max(0.0, at - one.at), 3),
                "signals": [one.signal],
            }
        elif one.signal not in known["signals"]:  # the same culprit, seen in another way
            known["detail"] = f"{known['detail']}; {_text(signal.detail, signal, one)}"[: 2 * _MAX_TEXT]
            known["lead_seconds"] = max(known["lead_seconds"], round(at - one.at, 3))
            known["signals"].append(one.signal)
    return list(found.values())[:MAX_SUSPECTS]


def _suspicious(table: dict[str, Signal], departure: Departure, departures: Sequence[Departure]) -> bool:
    signal = table[departure.signal]
    if signal.kind == SYMPTOM:
        return False
    earlier = (one for one in departures if one.at < departure.at)
    return not signal.alone or all(table[one.signal].harms != "weights" for one in earlier)


def _departure_view(signal: Signal, departure: Departure, at: float) -> dict[str, Any]:
    return {
        "signal": departure.signal,
        "kind": signal.kind,
        "name": _text(signal.name, signal, departure),
        "detail": _text(signal.detail, signal, departure),
        "at": departure.at,
        "step": departure.step,
        "lead_seconds": round(max(0.0, at - departure.at), 3),
    }


class _Values(dict[str, str]):
    def __missing__(self, key: str) -> str:
        return f"(no {key})"


def _text(template: str, signal: Signal, departure: Departure) -> str:
    values = _Values(departure.labels)
    values.update(
        value=_number(departure.value),
        usual=_number(departure.usual) if departure.usual is not None else "(unknown)",
        limit=_number(signal.limit),
        steps=_steps(departure),
    )
    return string.Template(template).substitute(values)[:_MAX_TEXT].replace("\x00", "\ufffd")


def _number(value: float) -> str:
    return f"{value:.3g}" if math.isfinite(value) and abs(value) < 1e5 else f"{value:g}"


def _steps(departure: Departure) -> str:
    if departure.step is None or departure.last_step is None:
        return "a step"
    first, last = departure.step + 1, departure.last_step
    return f"step {last}" if first >= last else f"steps {first} to {last}"
