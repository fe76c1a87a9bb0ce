"""Settings of a monitor: defaults, environment variables, a dict or a YAML file; unknown keys are refused."""

from __future__ import annotations

import hashlib
import importlib.util
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, cast, get_args

import yaml
from pydantic import (
    Field,
    NonNegativeInt,
    SerializerFunctionWrapHandler,
    field_validator,
    model_serializer,
    model_validator,
)

from trainswitch.config_dialects import KEYS, SECTION, translate
from trainswitch.errors import ConfigError
from trainswitch.limits import LimitConfig, PhaseConfig, Phases, check_limits
from trainswitch.sections import Section, read_section, settings_of

HOME_VARIABLE = "TRAINSWITCH_HOME"

GuardSetting = Literal["auto", "on", "off"]

_DEFAULT_WARMUP_STEPS = 1000
_SHORTEST_WARMUP_STEPS = 20


def home_folder() -> Path:
    """Return the folder that trainers and the local stack share: $TRAINSWITCH_HOME, or ``.trainswitch`` here.

    Below it: ``control/<run>/`` (the protocol's files), ``targets/`` (file_sd), ``checkpoints/<run>/``,
    ``tokens/`` and ``stack/``.
    """
    return Path(os.environ.get(HOME_VARIABLE) or ".trainswitch").absolute()


class ServerConfig(Section):
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
    tls_client_ca: Path | None = None
    """Authorities (PEM) by one of which every scrape's own certificate must be signed."""
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
        if self.tls_client_ca is not None and self.tls_cert is None:
            raise ValueError("tls_client_ca has no effect without TLS: give tls_cert and tls_key, too")
        return self


class ControlConfig(Section):
    """The control folder."""

    folder: Path = Field(default_factory=lambda: home_folder() / "control")
    """Holds ``<run>/commands.json`` and ``<run>/status.json``; shared with the controller."""
    poll_interval_seconds: float = Field(default=0.5, ge=0.01, le=60.0)
    """How often the folder is looked at, off the training thread."""
    status_interval_seconds: float = Field(default=5.0, ge=0.1, le=600.0)
    """How often ``status.json`` is refreshed while nothing happens; answers and new states go out at once."""
    signing_key_file: Path | None = None
    """Keys that the controller has, too, one a line: only what is signed by one of them is believed."""


class CheckpointConfig(Section):
    """Checkpoints for snapshot and rollback."""

    folder: Path = Field(default_factory=lambda: home_folder() / "checkpoints")
    """Holds ``<run>/step-…/``."""
    interval_steps: int = Field(default=500, ge=0)
    """A checkpoint every so many steps; 0 means only when a command asks for one."""
    keep: int = Field(default=3, ge=2)
    """How many of the newest checkpoints rotation keeps; stable ones that a rollback needs stay, too."""
    probation_steps: int = Field(default=100, ge=1)
    """Steps without trouble after which a checkpoint is stable."""
    max_pinned: int = Field(default=3, ge=1)
    """How many checkpoints ``snapshot`` with ``pin`` keeps from rotation; one more unpins the oldest."""


class StatisticsConfig(Section):
    """Statistics over steps."""

    warmup_steps: int | None = Field(default=None, ge=0)
    """Steps before relative limits hold. Default: 1000, or a tenth of `total_steps` where that is less."""
    total_steps: int | None = Field(default=None, ge=1)
    """Planned length of the run: chooses the warm-up, and ends the phases that have an `until_fraction`."""
    loss_span_steps: int = Field(default=100, ge=5)
    """Span of the EWMA behind the loss's centre line and scale: smoothing 2 / (span + 1)."""
    chart_lambda: float = Field(default=0.2, gt=0.0, le=1.0)
    """Smoothing of the EWMA chart statistic; 0.2 is sensitive to lasting shifts of about one sigma."""
    gradient_window_steps: int = Field(default=512, ge=16, le=65536)
    """How many gradient norms the trailing median and quantiles look back on."""
    trend_window_steps: int = Field(default=256, ge=8, le=65536)
    """How many losses the slope, minimum, median and maximum look back on."""
    season_steps: int | None = Field(default=None, ge=2)
    """Period of the loss, such as an epoch: deviations are then taken from the phase's own centre."""
    recent_evaluations: int = Field(default=3, ge=2, le=1024)
    """How many of the newest evaluations of a metric are compared with those before them."""
    reference_evaluations: int = Field(default=10, ge=2, le=1024)
    """How many evaluations before the recent ones they are compared with."""
    evaluation_better: dict[str, Literal["higher", "lower"]] = Field(default_factory=dict)
    """Evaluation metric → which of its values are better, where the name misleads. Default: ``lower`` for
    names that say loss, error, perplexity or a usual shorthand, else ``higher``."""

    @property
    def effective_warmup_steps(self) -> int:
        """Steps of warm-up after the defaults are worked out."""
        if self.warmup_steps is not None:
            return self.warmup_steps
        if self.total_steps is not None:
            return min(_DEFAULT_WARMUP_STEPS, max(_SHORTEST_WARMUP_STEPS, self.total_steps // 10))
        return _DEFAULT_WARMUP_STEPS


class ThroughputConfig(Section):
    """What ``train_model_flops_utilization_ratio`` needs; without `peak_flops` it is not exported."""

    peak_flops: float | None = Field(default=None, gt=0.0)
    """FLOPs per second that one rank's hardware does at most in the precision in use (bf16 on an H100 SXM:
    989e12)."""
    flops_per_token: float | None = Field(default=None, gt=0.0)
    """FLOPs of one token's forward and backward pass. Default: 6 per parameter of the attached model, the
    usual estimate for a dense transformer."""
    flops_per_step: float | None = Field(default=None, gt=0.0)
    """FLOPs of one step on one rank, for models without tokens."""
    baseline_samples_per_second: float | None = Field(default=None, gt=0.0)
    """What one rank is expected to do; exported as ``train_baseline{signal="samples_per_second"}``."""

    @model_validator(mode="after")
    def _effective(self) -> ThroughputConfig:
        if self.flops_per_token is not None and self.flops_per_step is not None:
            raise ValueError("flops_per_token and flops_per_step exclude each other: give one of them")
        if self.peak_flops is None and (self.flops_per_token or self.flops_per_step):
            raise ValueError("the model's FLOPs have no effect without the hardware's: add peak_flops")
        return self

    @property
    def estimated(self) -> bool:
        """Whether the FLOPs of a token are estimated from the number of parameters."""
        return self.peak_flops is not None and self.flops_per_token is None and self.flops_per_step is None


class SamplingConfig(Section):
    """How often each signal is measured, in steps; 0 is never. `Monitor.set_sampling` changes it later.

    A signal is measured at the steps that are multiples of its interval, so at the same ones on every rank.
    """

    grad_norm: int = Field(default=1, ge=0)
    """Global gradient norm. Where `clip_grad_norm_` or the guard works it out in any case, every step's is
    recorded."""
    layers: int = Field(default=10, ge=0)
    """Gradient norm of each layer."""
    weights: int = Field(default=100, ge=0)
    """Weight norm and update ratio of each layer; the ratio needs `layers.update_copy_parameters`."""
    activations: int = Field(default=100, ge=0)
    """Inactive ratio of each layer, and non-finite activations. Only modules can be seen: an activation
    called as a function has no ratio."""
    checksum: int = Field(default=1000, ge=0)
    """Checksum of the weights. Choose it to last longer than two scrapes, so that ranks can be compared."""


class LayersConfig(Section):
    """Values of each layer."""

    max_series: int = Field(default=32, ge=2, le=128)
    """Layers with a series of their own, "(other)" included; the smaller ones beyond are in "(other)"."""
    all_ranks: bool = False
    """Whether ranks other than 0 measure layers, weights and activations, too, as sharded models need."""
    update_copy_parameters: int = Field(default=250_000_000, ge=0)
    """Update ratios need a copy of the weights during one step in `sampling.weights`: up to this many
    parameters on this rank it is made; beyond, the ratio is left out with a line in the log."""


class CsvConfig(Section):
    """Steps and evaluations as CSV."""

    folder: Path = Field(default_factory=lambda: home_folder() / "csv")
    """Holds ``<run>/rank-<rank>/steps.<number>.csv``."""


class TensorBoardConfig(Section):
    """Steps and evaluations as TensorBoard event files; needs the extra ``tensorboard``."""

    folder: Path = Field(default_factory=lambda: home_folder() / "tensorboard")
    """Holds ``<run>/rank-<rank>/``; give it to ``tensorboard --logdir``."""

    @model_validator(mode="after")
    def _installed(self) -> TensorBoardConfig:
        if importlib.util.find_spec("tensorboard") is None:
            raise ValueError("tensorboard is not installed: run pip install 'trainswitch[tensorboard]'")
        return self


class SinksConfig(Section):
    """Files that the aggregator writes besides serving metrics; none by default."""

    csv: CsvConfig | None = None
    """``csv: {}`` writes CSV."""
    tensorboard: TensorBoardConfig | None = None
    """``tensorboard: {}`` writes event files."""
    interval_steps: int = Field(default=1, ge=1)
    """One step in so many is written; a step whose loss or gradient norm is not finite always is."""
    max_bytes: int = Field(default=2**29, ge=2**20)
    """What each sink may keep of a rank; beyond it the oldest eighth is removed."""
    all_ranks: bool = False
    """Whether ranks other than 0 write, too."""

    @model_validator(mode="before")
    @classmethod
    def _not_empty(cls, given: Any) -> Any:
        for name in ("csv", "tensorboard"):
            if isinstance(given, Mapping) and given.get(name, 0) is None:  # "csv:" alone looks like "on"
                raise ValueError(f"{name} is empty: write '{name}: {{}}' for its defaults, or leave it out")
        return given

    @model_serializer(mode="wrap")
    def _without_none(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {name: value for name, value in serialize(self).items() if value is not None}

    @model_validator(mode="after")
    def _some_sink(self) -> SinksConfig:
        if self.csv is None and self.tensorboard is None:
            for name, field in type(self).model_fields.items():
                if getattr(self, name) != field.default:
                    raise ValueError(f"{name} has no effect without a sink: add csv or tensorboard")
        return self


class SidecarConfig(Section):
    """The process beside the trainer that serves its metrics; only with `isolate`."""

    cpus: tuple[NonNegativeInt, ...] | None = Field(default=None, min_length=1)
    """CPUs it may use. Default: the last of those that the trainer may use, if there are at least two."""
    linger_seconds: float = Field(default=300.0, ge=0.0, le=86400.0)
    """How long it serves on after the trainer has died; after an orderly end, `server.linger_seconds`."""
    hang_seconds: float = Field(default=60.0, ge=1.0)
    """A running trainer hangs when it has not stepped for so long and for `hang_factor` steps."""
    hang_factor: float = Field(default=20.0, ge=1.0)
    """The same in mean durations of its recent steps; the longer of the two counts."""
    black_box_folder: Path = Field(default_factory=lambda: home_folder() / "blackbox")
    """Gets ``<run>.<rank>.<time>.jsonl`` when the trainer has died."""
    black_box_steps: int = Field(default=1000, ge=1, le=100_000)
    """Last steps in a black-box file, with what else happened between them."""
    black_box_files: int = Field(default=5, ge=1)
    """Newest black-box files of a rank to keep."""


class MonitorConfig(Section):
    """Everything about a monitor that is not the run's name or its objects."""

    enabled: bool = True
    """Whether the run is watched. If not, the monitor leaves the training as it would be without it."""
    server: ServerConfig = Field(default_factory=ServerConfig)
    control: ControlConfig = Field(default_factory=ControlConfig)
    checkpoint: CheckpointConfig = Field(default_factory=CheckpointConfig)
    statistics: StatisticsConfig = Field(default_factory=StatisticsConfig)
    throughput: ThroughputConfig = Field(default_factory=ThroughputConfig)
    sinks: SinksConfig = Field(default_factory=SinksConfig)
    sampling: SamplingConfig = Field(default_factory=SamplingConfig)
    layers: LayersConfig = Field(default_factory=LayersConfig)
    phases: tuple[PhaseConfig, ...] = Field(default=(), max_length=16)
    """Phases of training, in order; the last one lasts to the end of the run."""
    limits: tuple[LimitConfig, ...] = ()
    guard: GuardSetting = "auto"
    """Whether the optimizer's steps on gradients that are not finite are skipped; ``auto``: wherever that
    makes nothing wait for a device."""
    isolate: bool = False
    """Whether metrics are served by a process of its own, which outlives a trainer that hangs or dies."""
    sidecar: SidecarConfig | None = None
    """Of that process; None for its defaults."""
    ring_records: int = Field(default=16384, ge=64, le=2**22)
    """Slots of the shared-memory ring, 256 bytes each."""

    @field_validator("guard", mode="before")
    @classmethod
    def _yaml_reads_on_as_true(cls, given: Any) -> Any:
        return {True: "on", False: "off"}[given] if isinstance(given, bool) else given

    @model_validator(mode="after")
    def _phases_in_order(self) -> MonitorConfig:
        Phases(self.phases, self.statistics.total_steps)
        return self

    @model_validator(mode="after")
    def _one_limit_each(self) -> MonitorConfig:
        check_limits(self.limits, [phase.name for phase in self.phases])
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
        return _read(config, "config")
    path = Path(config)
    document = _load_yaml(path, ())
    if document is None:
        document = {}
    if not isinstance(document, dict):
        raise ConfigError(
            f"{path} holds a {type(document).__name__}, not settings: write 'key: value' lines."
        )
    return _read(document, str(path))


def with_isolation(config: MonitorConfig, isolate: bool | None) -> MonitorConfig:
    """Return `config` with `isolate` as the program decides; None leaves it as it is.

    Raises:
        ConfigError: there are settings of a sidecar, and none is to be started.
    """
    if isolate is not None:
        config = config.model_copy(update={"isolate": isolate})
    if config.sidecar is not None and not config.isolate:
        raise ConfigError("sidecar has no effect without isolate: set isolate to true or remove sidecar.")
    return config


def with_guard(config: MonitorConfig, guard: str | None) -> MonitorConfig:
    """Return `config` with `guard` as the program decides; None leaves it as it is.

    Raises:
        ConfigError: `guard` is not one of the setting's values.
    """
    if guard is None:
        return config
    if guard not in get_args(GuardSetting):
        raise ConfigError(f"guard={guard!r} is not known: use one of {', '.join(get_args(GuardSetting))}.")
    return config.model_copy(update={"guard": guard})


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


def _read(document: Mapping[str, Any], source: str) -> MonitorConfig:
    known = {SECTION: SECTION} | KEYS | dict(settings_of(MonitorConfig))
    if SECTION not in document:
        return read_section(MonitorConfig, document, source, known)
    config = read_section(MonitorConfig, translate(document, source, known), source, known)
    if "grad_norm" not in (document.get("sampling") or {}):
        # The dialect's interval holds for what is measured. It is no demand that the norm be measured here:
        # a loop without an optimizer gives it to step().
        config.sampling.model_fields_set.discard("grad_norm")
    return config
