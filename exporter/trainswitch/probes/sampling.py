"""Which intervals have an effect, and how they change at run time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from trainswitch.config import SamplingConfig, load_config
from trainswitch.errors import ConfigError

_NEEDS = {
    "grad_norm": ("optimizer",),
    "layers": ("model", "optimizer"),
    "weights": ("model", "optimizer"),
    "activations": ("model",),
    "checksum": ("model",),
}


def check_sampling(sampling: SamplingConfig, asked_for: Iterable[str], attached: Iterable[str]) -> None:
    """Refuse an interval that has no effect.

    Args:
        sampling: the intervals.
        asked_for: names of those that somebody chose; a default may be without effect.
        attached: which of ``model`` and ``optimizer`` there are.

    Raises:
        ConfigError: an interval above 0 was chosen, and what it measures is not attached.
    """
    for name in asked_for:
        interval = getattr(sampling, name)
        missing = [part for part in _NEEDS[name] if part not in attached]
        if interval and missing:
            raise ConfigError(
                f"sampling.{name} = {interval} has no effect without {' and '.join(missing)}: "
                "pass what is missing to attach(), or leave the setting out."
            )


def changed_sampling(
    sampling: SamplingConfig, intervals: Mapping[str, int], attached: Iterable[str]
) -> SamplingConfig:
    """Return `sampling` with some intervals changed.

    Raises:
        ConfigError: a name is unknown, an interval is not a whole number from 0, or it has no effect.
    """
    changed = load_config({"sampling": {**sampling.model_dump(), **intervals}}).sampling
    check_sampling(changed, intervals, attached)
    return changed
