"""The section ``monitor_config`` of MindSpore Transformers users, in both of its dialects, as our settings.

Every key has an effect, or is refused with what to use instead; docs/configuration.md has the table. The
*nested* dialect has sections for alerts and TensorBoard; the *flat* one is that of MindSpore Transformers'
own ``MonitorConfig`` (mindformers/tools/register/template.py).
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BeforeValidator, Field

from trainswitch.errors import ConfigError
from trainswitch.sections import Section, read_section, settings_of

SECTION = "monitor_config"

_ALWAYS = ("loss", "learning_rate", "lr", "step_time", "throughput", "memory", "gpu")
_SAMPLED = {
    "grad_norm": "grad_norm",
    "global_norm": "grad_norm",
    "layers": "layers",
    "local_norm": "layers",
    "weights": "weights",
    "weight_norm": "weights",
    "activations": "activations",
    "checksum": "checksum",
}
"""Name in ``metrics`` → setting of the section ``sampling``."""
_SPIKE_THRESHOLD = 3.0
"""What MindSpore Transformers takes where ``global_norm_spike_threshold`` is left out."""

Format = Literal["tensorboard", "log"]


def _listed(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


Formats = Annotated[tuple[Format, ...] | None, BeforeValidator(_listed)]
Names = Annotated[tuple[str, ...] | None, BeforeValidator(_listed)]


class _Shared(Section):
    monitor_on: bool = True
    step_interval: int = Field(default=1, ge=1)


class AlertSection(Section):
    """``alert`` of the nested dialect."""

    enable: bool = True
    loss_spike_threshold: float | None = Field(default=None, gt=1.0)
    grad_norm_threshold: float | None = Field(default=None, gt=0.0)
    alert_interval: Any = None


class TensorBoardSection(Section):
    """``tensorboard`` of the nested dialect."""

    enable: bool = True
    log_dir: str | None = None


class NestedDialect(_Shared):
    """The dialect with sections of its own."""

    log_interval: int = Field(default=1, ge=1)
    metrics: Names = None
    alert: AlertSection = AlertSection()
    tensorboard: TensorBoardSection = TensorBoardSection(enable=False)
    per_device_metrics: bool = False


class FlatDialect(_Shared):
    """MindSpore Transformers' own."""

    dump_path: str | None = None
    target: Names = None
    invert: bool = False
    local_loss_format: Formats = None
    local_norm_format: Formats = None
    device_local_loss_format: Formats = None
    device_local_norm_format: Formats = None
    optimizer_state_format: Formats = None
    weight_state_format: Formats = None
    throughput_baseline: float | None = Field(default=None, gt=0.0)
    print_struct: bool = False
    check_for_global_norm: bool = False
    global_norm_spike_threshold: float | None = Field(default=None, gt=0.0)
    global_norm_spike_count_threshold: int | None = Field(default=None, ge=3, le=100)


KEYS = {
    name: f"{SECTION}.{place}"
    for dialect in (NestedDialect, FlatDialect)
    for name, place in settings_of(dialect)
}
"""Setting of either dialect → where it belongs."""


class Effect(NamedTuple):
    """One of our settings, and the key of the dialect that it comes from."""

    key: str
    path: tuple[str, ...]
    value: Any


def translate(document: Mapping[str, Any], source: str, known: Mapping[str, str]) -> dict[str, Any]:
    """Return `document` with what its section ``monitor_config`` stands for in place of that section.

    Args:
        document: settings, with that section.
        source: where they were found, for the sentence about what is wrong.
        known: setting → where it belongs, of all settings that could have been meant.

    Raises:
        ConfigError: a key is unknown, out of bounds or refused, or contradicts the other settings.
    """
    ours = {name: value for name, value in document.items() if name != SECTION}
    given = document[SECTION]
    if not isinstance(given, Mapping) or not given:
        raise ConfigError(f"{source}: {SECTION} holds no settings: write its keys below it, or remove it.")
    dialect = _dialect_of(given, source)
    section = read_section(dialect, given, source, known, f"{SECTION}.")
    writes = any(name in (ours.get("sinks") or ()) for name in ("csv", "tensorboard"))
    try:
        effects = _nested(section, writes) if isinstance(section, NestedDialect) else _flat(section)
        for effect in effects:
            ours = _apply(ours, effect)
    except _Refused as refusal:
        raise ConfigError(f"{source}: {refusal}.") from None
    return ours


class _Refused(Exception):
    """A key that is not taken; the message ends without a full stop."""

    def __init__(self, key: str, sentence: str) -> None:
        super().__init__(f"{SECTION}.{key} {sentence}")


def _dialect_of(given: Mapping[str, Any], source: str) -> type[NestedDialect | FlatDialect]:
    nested, flat = (
        [key for key in given if key in dialect.model_fields and key not in _Shared.model_fields]
        for dialect in (NestedDialect, FlatDialect)
    )
    if nested and flat:
        raise ConfigError(
            f"{source}: {SECTION} mixes two dialects, of which one has {nested[0]} and the other {flat[0]}: "
            "keep the keys of one of them."
        )
    return FlatDialect if flat else NestedDialect


# ── effects ───────────────────────────────────────────────────────────────────────────────────────────


def _nested(section: NestedDialect, writes: bool) -> Iterator[Effect]:
    """Yield what the nested dialect says; `writes` is whether there is a sink besides."""
    given = section.model_fields_set
    yield from _switch(section)
    yield from _sampled(section)
    if section.alert.alert_interval is not None:
        raise _Refused(
            "alert.alert_interval",
            "is not a trainer's setting: remove it, and set repeat_interval of the route in alertmanager.yml",
        )
    yield from _thresholds(section.alert)
    if "tensorboard" in given:
        yield from _tensorboard(section.tensorboard)
    writes = writes or section.tensorboard.enable
    if "log_interval" in given:
        if not writes:  # what goes to the log in the dialects goes to CSV here
            writes = True
            yield Effect("log_interval", ("sinks", "csv"), {})
        yield Effect("log_interval", ("sinks", "interval_steps"), section.log_interval)
    if "per_device_metrics" in given:
        yield Effect("per_device_metrics", ("layers", "all_ranks"), section.per_device_metrics)
        if writes:
            yield Effect("per_device_metrics", ("sinks", "all_ranks"), section.per_device_metrics)


def _switch(section: _Shared) -> Iterator[Effect]:
    if "monitor_on" in section.model_fields_set:
        yield Effect("monitor_on", ("enabled",), section.monitor_on)


def _sampled(section: NestedDialect) -> Iterator[Effect]:
    """What is measured of the model: what `metrics` names, every `step_interval` steps."""
    wanted = {"grad_norm"}
    if section.metrics is not None:
        wanted = {_SAMPLED[name] for name in section.metrics if _measured(name)}
        for signal in sorted(set(_SAMPLED.values()) - wanted):
            yield Effect("metrics", ("sampling", signal), 0)
    if "step_interval" in section.model_fields_set:
        for signal in sorted(wanted):
            yield Effect("step_interval", ("sampling", signal), section.step_interval)


def _measured(name: str) -> bool:
    """Whether `name` is a signal that is sampled, and not one that every step has anyway."""
    if name in _SAMPLED:
        return True
    if name not in _ALWAYS:
        known = (*_ALWAYS, *_SAMPLED)
        near = difflib.get_close_matches(name, known, n=1)
        meant = f"did you mean {near[0]!r}?" if near else f"use some of {', '.join(known)}"
        raise _Refused("metrics", f"names {name!r}, which is not measured: {meant}")
    return False


def _thresholds(alert: AlertSection) -> Iterator[Effect]:
    if not alert.enable:
        yield Effect("alert.enable", ("limits",), ())
        return
    thresholds = (
        ("grad_norm_threshold", "grad_norm", alert.grad_norm_threshold),
        ("loss_spike_threshold", "loss_ratio", alert.loss_spike_threshold),
    )
    for key, signal, value in thresholds:
        if value is not None:
            yield _limit(f"alert.{key}", signal, "warning", value)


def _tensorboard(section: TensorBoardSection) -> Iterator[Effect]:
    if not section.enable:
        yield Effect("tensorboard.enable", ("sinks", "tensorboard"), None)
        return
    yield Effect("tensorboard.enable", ("sinks", "tensorboard"), {})
    if section.log_dir is not None:
        yield Effect("tensorboard.log_dir", ("sinks", "tensorboard", "folder"), section.log_dir)


def _flat(section: FlatDialect) -> Iterator[Effect]:
    given = section.model_fields_set
    _refuse_flat(section)
    yield from _switch(section)
    if "step_interval" in given:
        yield Effect("step_interval", ("sampling", "grad_norm"), section.step_interval)
    for key, signal in (("local_norm_format", "layers"), ("weight_state_format", "weights")):
        if key in given:
            wanted = getattr(section, key)
            yield Effect(key, ("sampling", signal), section.step_interval if wanted else 0)
    yield from _files(section)
    if section.throughput_baseline is not None:
        path = ("throughput", "baseline_samples_per_second")
        yield Effect("throughput_baseline", path, section.throughput_baseline)
    yield from _norm_limit(section)


def _refuse_flat(section: FlatDialect) -> None:
    if section.optimizer_state_format:
        raise _Refused(
            "optimizer_state_format",
            "has no counterpart, since optimizer states are not measured: remove it, and look at "
            "train_layer_update_ratio, which tells what the optimizer does to each layer",
        )
    if section.print_struct:
        raise _Refused("print_struct", "is no monitoring: remove it, and print the model once in the script")
    if section.invert or section.target not in (None, (".*",)):
        raise _Refused(
            "invert" if section.invert else "target",
            "has no counterpart, since all layers are measured: remove it, and choose layers where you look, "
            'as in train_layer_grad_norm{layer=~"…"}; layers.max_series bounds their number',
        )


def _files(section: FlatDialect) -> Iterator[Effect]:
    """Files: what goes to the log in the dialect goes to CSV here."""
    sinks = {"tensorboard": "tensorboard", "log": "csv"}
    found = False
    for key in FlatDialect.model_fields:
        if not key.endswith("_format"):
            continue
        for name in getattr(section, key) or ():
            found = True
            yield Effect(key, ("sinks", sinks[name]), {})
        if key.startswith("device_") and getattr(section, key):
            yield Effect(key, ("sinks", "all_ranks"), True)
            if key == "device_local_norm_format":
                yield Effect(key, ("layers", "all_ranks"), True)
    if section.dump_path is not None:
        found = True
        yield Effect("dump_path", ("sinks", "csv"), {})
        if section.dump_path:
            yield Effect("dump_path", ("sinks", "csv", "folder"), section.dump_path)
    if found and "step_interval" in section.model_fields_set:
        yield Effect("step_interval", ("sinks", "interval_steps"), section.step_interval)


def _norm_limit(section: FlatDialect) -> Iterator[Effect]:
    """A norm that only stands out warns; where the dialect would act on it, it is critical."""
    asked = [
        key
        for key in (
            "global_norm_spike_threshold",
            "check_for_global_norm",
            "global_norm_spike_count_threshold",
        )
        if getattr(section, key)
    ]
    if asked:
        severity = "warning" if asked == ["global_norm_spike_threshold"] else "critical"
        value = section.global_norm_spike_threshold or _SPIKE_THRESHOLD
        yield _limit(asked[0], "grad_norm", severity, value, section.global_norm_spike_count_threshold)


def _limit(key: str, signal: str, severity: str, value: float, steps: int | None = None) -> Effect:
    limit = {"signal": signal, "severity": severity, "value": value, "reason": f"{SECTION}.{key}"}
    return Effect(key, ("limits",), limit if steps is None else {**limit, "steps": steps})


# ── merging ───────────────────────────────────────────────────────────────────────────────────────────


def _apply(settings: Mapping[str, Any], effect: Effect) -> dict[str, Any]:
    """Return `settings` with an effect.

    Raises:
        _Refused: they say otherwise.
    """
    if effect.path == ("limits",):
        return {**settings, "limits": _with_limit(settings.get("limits", ()), effect)}
    return _with_value(settings, effect, effect.path)


def _with_value(settings: Mapping[str, Any], effect: Effect, path: tuple[str, ...]) -> dict[str, Any]:
    name, *rest = path
    there = settings.get(name, _NOTHING)
    if rest or isinstance(effect.value, Mapping):
        inner: Any = {} if there is _NOTHING else there
        if not isinstance(inner, Mapping):
            raise _contradiction(effect, inner)
        return {**settings, name: _with_value(inner, effect, tuple(rest)) if rest else inner}
    if effect.value is None and there is _NOTHING:  # a section that must not be there
        return dict(settings)
    if there is not _NOTHING and there != effect.value:
        raise _contradiction(effect, there)
    return {**settings, name: effect.value}


_NOTHING = object()


def _with_limit(limits: Any, effect: Effect) -> Any:
    if not isinstance(limits, list | tuple):
        return limits  # what it is, and is not, is said when it is read
    if not effect.value:
        if limits:
            raise _contradiction(effect, "some limits")
        return limits
    for limit in limits:
        if not isinstance(limit, Mapping) or limit.get("phase") is not None:
            continue
        same = all(limit.get(name, "critical") == effect.value[name] for name in ("signal", "severity"))
        if same and (limit.get("value"), limit.get("steps")) == (
            effect.value["value"],
            effect.value.get("steps"),
        ):
            return limits
        if same:
            raise _contradiction(effect, dict(limit))
    return [*limits, effect.value]


def _contradiction(effect: Effect, there: Any) -> _Refused:
    path = ".".join(effect.path)
    return _Refused(effect.key, f"contradicts {path}, which is {there!r}: keep one of them")
