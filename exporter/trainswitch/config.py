"""Settings of a monitor: defaults, environment variables, a dict or a YAML file; unknown keys are refused."""

from __future__ import annotations

import difflib
import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, cast, get_args

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from trainswitch.errors import ConfigError

HOME_VARIABLE = "TRAINSWITCH_HOME"

_DEFAULT_WARMUP_STEPS = 1000
_SHORTEST_WARMUP_STEPS = 20


def home_folder() -> Path:
    """Return the folder that trainers and the local stack share: $TRAINSWITCH_HOME, or ``.trainswitch`` here.

    Below it: ``control/<run>/`` (the protocol's files), ``targets/`` (file_sd), ``checkpoints/<run>/``,
    ``tokens/`` and ``stack/``.
    """
    return Path(os.environ.get(HOME_VARIABLE) or ".trainswitch").absolute()


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class ServerConfig(_Section):
    """The scrape endpoint."""

    host: str = Field(default_factory=lambda: os.environ.get("TRAINSWITCH_HOST") or "127.0.0.1")
    """Address to listen on. Default: $TRAINSWITCH_HOST, or loopback."""
    port: int = Field(default=9400, ge=0, le=65535)
    """Port of local rank 0; local rank n takes port + n. A port in use, or 0, means any free one."""
    advertise: str | None = Field(default_factory=lambda: os.environ.get("TRAINSWITCH_ADVERTISE") or None)
    """Host name under which Prometheus reaches this machine. Default: $TRAINSWITCH_ADVERTISE, or `host`."""
    targets_dir: Path = Field(default_factory=lambda: home_folder() / "targets")
    """Folder that Prometheus reads by file_sd."""
    tls_cert: Path | None = None
    """Certificate chain (PEM); with `tls_key`, the endpoint speaks HTTPS."""
    tls_key: Path | None = None
    """Private key (PEM)."""
    bearer_token_file: Path | None = None
    """File with the token that a scrape must send; read once, at start."""
    linger_seconds: float = Field(default=3.0, ge=0.0, le=60.0)
    """How long the end of a run may wait for one more scrape, if it was being scraped at all."""

    @property
    def protected(self) -> bool:
        """Whether a scrape is encrypted or needs a token."""
        return self.tls_cert is not None or self.bearer_token_file is not None

    @model_validator(mode="after")
    def _both_or_neither(self) -> ServerConfig:
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ValueError("tls_cert and tls_key belong together: give both or neither")
        return self


class ControlConfig(_Section):
    """The control folder."""

    folder: Path = Field(default_factory=lambda: home_folder() / "control")
    """Holds ``<run>/commands.json`` and ``<run>/status.json``; shared with the controller."""
    poll_interval_seconds: float = Field(default=0.2, ge=0.01, le=60.0)
    """How often the folder is looked at, off the training thread."""
    status_interval_seconds: float = Field(default=1.0, ge=0.1, le=600.0)
    """How often ``status.json`` is refreshed while nothing happens."""


class CheckpointConfig(_Section):
    """Checkpoints for snapshot and rollback."""

    folder: Path = Field(default_factory=lambda: home_folder() / "checkpoints")
    """Holds ``<run>/step-…/``."""
    interval_steps: int = Field(default=500, ge=0)
    """A checkpoint every so many steps; 0 means only when a command asks for one."""
    keep: int = Field(default=3, ge=2)
    """How many of the newest checkpoints rotation keeps; stable ones that a rollback needs stay, too."""
    probation_steps: int = Field(default=100, ge=1)
    """Steps without trouble after which a checkpoint is stable."""


class StatisticsConfig(_Section):
    """Statistics over steps."""

    warmup_steps: int | None = Field(default=None, ge=0)
    """Steps before relative limits hold. Default: 1000, or a tenth of `total_steps` where that is less."""
    total_steps: int | None = Field(default=None, ge=1)
    """Planned length of the run; only used to choose the warm-up."""
    loss_span_steps: int = Field(default=100, ge=5)
    """Span of the EWMA behind the loss's centre line and scale: smoothing 2 / (span + 1)."""
    chart_lambda: float = Field(default=0.2, gt=0.0, le=1.0)
    """Smoothing of the EWMA chart statistic; 0.2 is sensitive to lasting shifts of about one sigma."""
    gradient_window_steps: int = Field(default=512, ge=16, le=65536)
    """How many gradient norms the trailing median and quantiles look back on."""
    trend_window_steps: int = Field(default=256, ge=8, le=65536)
    """How many losses the slope, minimum, median and maximum look back on."""

    @property
    def effective_warmup_steps(self) -> int:
        """Steps of warm-up after the defaults are worked out."""
        if self.warmup_steps is not None:
            return self.warmup_steps
        if self.total_steps is not None:
            return min(_DEFAULT_WARMUP_STEPS, max(_SHORTEST_WARMUP_STEPS, self.total_steps // 10))
        return _DEFAULT_WARMUP_STEPS


class LimitConfig(_Section):
    """One absolute limit; it holds during the warm-up, too."""

    signal: Literal["loss", "grad_norm"]
    bound: Literal["upper"] = "upper"
    severity: Literal["warning", "critical"] = "critical"
    value: float
    reason: str = ""
    """Why this value, for those who meet it later."""


class MonitorConfig(_Section):
    """Everything about a monitor that is not the run's name or its objects."""

    server: ServerConfig = Field(default_factory=ServerConfig)
    control: ControlConfig = Field(default_factory=ControlConfig)
    checkpoint: CheckpointConfig = Field(default_factory=CheckpointConfig)
    statistics: StatisticsConfig = Field(default_factory=StatisticsConfig)
    limits: tuple[LimitConfig, ...] = ()
    ring_records: int = Field(default=16384, ge=64, le=2**22)
    """Slots of the shared-memory ring, 256 bytes each."""

    @model_validator(mode="after")
    def _one_limit_each(self) -> MonitorConfig:
        keys = [(limit.signal, limit.bound, limit.severity) for limit in self.limits]
        for key in keys:
            if keys.count(key) > 1:
                raise ValueError(f"limits names {' '.join(key)} more than once: keep one of them")
        return self

    @property
    def sha256(self) -> str:
        """Hash of the configuration, as exported by ``train_config_info``."""
        return hashlib.sha256(self.model_dump_json().encode()).hexdigest()


def load_config(config: str | os.PathLike[str] | Mapping[str, Any] | MonitorConfig | None) -> MonitorConfig:
    """Return the configuration that a path to a YAML file, a dict, a `MonitorConfig` or None stands for.

    Raises:
        ConfigError: the file cannot be read, or a key is unknown, misplaced or out of bounds.
    """
    if config is None:
        return MonitorConfig()
    if isinstance(config, MonitorConfig):
        return config
    if isinstance(config, Mapping):
        return _validate(config, "config")
    path = Path(config)
    document = _load_yaml(path, ())
    if document is None:
        document = {}
    if not isinstance(document, dict):
        raise ConfigError(
            f"{path} holds a {type(document).__name__}, not settings: write 'key: value' lines."
        )
    return _validate(document, str(path))


def _load_yaml(path: Path, parents: tuple[Path, ...]) -> Any:
    """Read a YAML file in which ``!include other.yml`` stands for the other file's content."""
    path = path.absolute()
    if path in parents:
        raise ConfigError(f"{path} includes itself through {parents[-1]}: remove one of the !include lines.")

    class Loader(yaml.SafeLoader):
        """A SafeLoader of its own, so that !include is relative to this very file."""

    def include(loader: yaml.SafeLoader, node: yaml.Node) -> Any:
        name = loader.construct_scalar(cast("yaml.ScalarNode", node))
        return _load_yaml(path.parent / str(name), (*parents, path))

    Loader.add_constructor("!include", include)
    try:
        with path.open(encoding="utf-8") as handle:
            return yaml.load(handle, Loader)  # noqa: S506 - a subclass of SafeLoader
    except OSError as error:
        raise ConfigError(f"cannot read configuration {path}: {error.strerror or error}.") from error
    except UnicodeDecodeError:
        raise ConfigError(f"configuration {path} is not UTF-8 text.") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"configuration {path} is not YAML: {' '.join(str(error).split())}.") from None


def _validate(document: Mapping[str, Any], source: str) -> MonitorConfig:
    try:
        return MonitorConfig.model_validate(document)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        if first["type"] == "extra_forbidden":
            raise ConfigError(f"{source}: {where!r} is not a setting{_nearest(first['loc'])}.") from None
        got = str(first["input"])[:80]
        raise ConfigError(
            f"{source}: {where or 'settings'} is not valid: {first['msg']} (got {got!r})."
        ) from None


def _nearest(location: tuple[int | str, ...]) -> str:
    """Name the setting that was probably meant, wherever it belongs."""
    known = dict(_all_settings(MonitorConfig, ""))
    key = str(location[-1])
    if key in known:
        return f": it belongs at {known[key]!r}"
    near = difflib.get_close_matches(key, known, n=1)
    return f": did you mean {known[near[0]]!r}?" if near else f": use one of {', '.join(known)}"


def _all_settings(model: type[BaseModel], prefix: str) -> list[tuple[str, str]]:
    settings = []
    for name, field in model.model_fields.items():
        settings.append((name, prefix + name))
        candidates = (field.annotation, *get_args(field.annotation))
        for section in candidates:
            if isinstance(section, type) and issubclass(section, BaseModel):
                settings.extend(_all_settings(section, f"{prefix}{name}."))
    return settings
