"""The section monitor_config: what each key of its two dialects does, and what is refused."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel
from tests.exporter.conftest import sample

import trainswitch
from trainswitch.config import MonitorConfig, load_config
from trainswitch.config_dialects import KEYS, FlatDialect, NestedDialect
from trainswitch.errors import ConfigError
from trainswitch.monitor_off import MonitorOff
from trainswitch.sections import settings_of

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "configuration.md"


def differences(document: dict[str, Any]) -> dict[str, Any]:
    """Return setting → value of all that is not as without `document`."""
    return flat(load_config(document).model_dump(mode="json"), flat(MonitorConfig().model_dump(mode="json")))


def flat(values: Any, defaults: dict[str, Any] | None = None, prefix: str = "") -> dict[str, Any]:
    """Return dotted name → value, without what is as in `defaults`."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, dict):
            found |= flat(value, defaults, f"{prefix}{name}.")
        elif defaults is None or defaults.get(prefix + name, ...) != value:
            found[prefix + name] = value
    return found


def limit(signal: str, severity: str, value: float, key: str, steps: int | None = None) -> dict[str, Any]:
    """A limit as the configuration writes it."""
    return {
        "signal": signal,
        "bound": "upper",
        "severity": severity,
        "value": value,
        "steps": steps,
        "phase": None,
        "reason": f"monitor_config.{key}",
    }


THRESHOLD = "alert.grad_norm_threshold"
SPIKE = "global_norm_spike_threshold"
NOTHING_SAMPLED = {"sampling.activations": 0, "sampling.checksum": 0, "sampling.weights": 0}
EFFECTS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    # both
    ({"monitor_on": False}, {"enabled": False}),
    ({"monitor_on": True}, {}),
    ({"step_interval": 7}, {"sampling.grad_norm": 7}),
    # nested
    ({"log_interval": 5}, {"sinks.csv.folder": "HOME/csv", "sinks.interval_steps": 5}),
    (
        {"log_interval": 5, "tensorboard": {"log_dir": "/tb"}},
        {"sinks.tensorboard.folder": "/tb", "sinks.interval_steps": 5},
    ),
    ({"metrics": ["loss", "grad_norm", "layers"]}, NOTHING_SAMPLED),
    ({"metrics": "loss"}, {**NOTHING_SAMPLED, "sampling.grad_norm": 0, "sampling.layers": 0}),
    (
        {"metrics": ["local_norm", "weight_norm"], "step_interval": 3},
        {
            "sampling.grad_norm": 0,
            "sampling.layers": 3,
            "sampling.weights": 3,
            "sampling.activations": 0,
            "sampling.checksum": 0,
        },
    ),
    ({"alert": {"grad_norm_threshold": 8}}, {"limits": [limit("grad_norm", "warning", 8.0, THRESHOLD)]}),
    (
        {"alert": {"enable": True, "loss_spike_threshold": 2.5}},
        {"limits": [limit("loss_ratio", "warning", 2.5, "alert.loss_spike_threshold")]},
    ),
    ({"alert": {"enable": False, "grad_norm_threshold": 8, "loss_spike_threshold": 2}}, {}),
    ({"tensorboard": {"enable": True}}, {"sinks.tensorboard.folder": "HOME/tensorboard"}),
    ({"tensorboard": {"enable": False, "log_dir": "/tb"}}, {}),
    ({"per_device_metrics": True}, {"layers.all_ranks": True}),
    (
        {"per_device_metrics": True, "tensorboard": {"log_dir": "/tb"}},
        {"layers.all_ranks": True, "sinks.all_ranks": True, "sinks.tensorboard.folder": "/tb"},
    ),
    # flat
    ({"dump_path": "/dump"}, {"sinks.csv.folder": "/dump"}),
    ({"dump_path": ""}, {"sinks.csv.folder": "HOME/csv"}),
    ({"target": [".*"], "invert": False}, {}),
    ({"local_loss_format": "tensorboard"}, {"sinks.tensorboard.folder": "HOME/tensorboard"}),
    (
        {"local_loss_format": ["log", "tensorboard"], "step_interval": 4},
        {
            "sampling.grad_norm": 4,
            "sinks.csv.folder": "HOME/csv",
            "sinks.tensorboard.folder": "HOME/tensorboard",
            "sinks.interval_steps": 4,
        },
    ),
    ({"local_norm_format": "log"}, {"sampling.layers": 1, "sinks.csv.folder": "HOME/csv"}),
    ({"local_norm_format": None}, {"sampling.layers": 0}),
    ({"weight_state_format": "log"}, {"sampling.weights": 1, "sinks.csv.folder": "HOME/csv"}),
    ({"weight_state_format": None}, {"sampling.weights": 0}),
    ({"device_local_loss_format": "log"}, {"sinks.csv.folder": "HOME/csv", "sinks.all_ranks": True}),
    (
        {"device_local_norm_format": "log"},
        {"sinks.csv.folder": "HOME/csv", "sinks.all_ranks": True, "layers.all_ranks": True},
    ),
    ({"optimizer_state_format": None}, {}),
    ({"throughput_baseline": 12.5}, {"throughput.baseline_samples_per_second": 12.5}),
    ({"print_struct": False}, {}),
    ({SPIKE: 4.0}, {"limits": [limit("grad_norm", "warning", 4.0, SPIKE)]}),
    (
        {SPIKE: 4.0, "check_for_global_norm": True},
        {"limits": [limit("grad_norm", "critical", 4.0, SPIKE)]},
    ),
    (
        {"check_for_global_norm": True},
        {"limits": [limit("grad_norm", "critical", 3.0, "check_for_global_norm")]},
    ),
    (
        {SPIKE: 4.0, "global_norm_spike_count_threshold": 10},
        {"limits": [limit("grad_norm", "critical", 4.0, SPIKE, 10)]},
    ),
    ({"check_for_global_norm": False}, {}),
]
REFUSED: list[tuple[dict[str, Any], str]] = [
    (
        {"alert": {"alert_interval": 60}},
        "monitor_config.alert.alert_interval is not a trainer's setting: remove it, and set repeat_interval",
    ),
    ({"optimizer_state_format": "log"}, "optimizer_state_format has no counterpart, .* remove it"),
    ({"print_struct": True}, "print_struct is no monitoring: remove it"),
    ({"target": ["attention"]}, r"target has no counterpart, .*train_layer_grad_norm\{layer=~"),
    ({"invert": True}, "invert has no counterpart, .* remove it"),
    ({"metrics": ["grad_nrom"]}, "metrics names 'grad_nrom', .* did you mean 'grad_norm'"),
    ({"metrics": ["qqq"]}, "metrics names 'qqq', .* use some of loss, "),
]


@pytest.mark.parametrize(("section", "effects"), EFFECTS, ids=str)
def test_a_key_has_its_effect_and_no_other(
    home: Path, section: dict[str, Any], effects: dict[str, Any]
) -> None:
    """A key changes the settings that the table in docs/configuration.md names, and leaves all others."""
    changed = differences({"monitor_config": section})
    expected = {
        name: value.replace("HOME", str(home)) if isinstance(value, str) else value
        for name, value in effects.items()
    }
    # A sink that is switched on brings its defaults along; that it is None otherwise is no difference.
    assert {name: value for name, value in changed.items() if value is not None} == expected


@pytest.mark.parametrize(("section", "message"), REFUSED, ids=str)
def test_a_key_without_counterpart_is_refused_with_what_to_use(section: dict[str, Any], message: str) -> None:
    """One sentence names the key and the way out."""
    with pytest.raises(ConfigError, match=message) as refusal:
        load_config({"monitor_config": section})
    assert str(refusal.value).startswith("config: monitor_config.")
    assert str(refusal.value).count(". ") == 0


def test_no_key_is_ignored() -> None:
    """Every key of both dialects stands in a case above, and in the documentation's table."""
    tried: set[str] = set()
    for section in [*(case[0] for case in EFFECTS), *(case[0] for case in REFUSED)]:
        for name, value in section.items():
            tried |= {name} | set(value if isinstance(value, dict) else ())
    assert tried == set(KEYS)
    text = DOCUMENT.read_text(encoding="utf-8")
    rows = set(re.findall(r"^\| `([a-z_.]+)`", text, flags=re.MULTILINE))
    leaves = {place for dialect in (NestedDialect, FlatDialect) for _, place in settings_of(dialect)}
    leaves -= {"alert", "tensorboard"}
    assert leaves <= rows


def test_every_setting_is_documented() -> None:
    """docs/configuration.md names each setting of ours where it belongs."""
    text = DOCUMENT.read_text(encoding="utf-8")
    documented = set(re.findall(r"`([a-z_0-9.]+)`", text))
    leaves = {
        place
        for name, place in settings_of(MonitorConfig)
        if not any(other.startswith(f"{place}.") for _, other in settings_of(MonitorConfig))
    }
    assert leaves - documented == set()


@pytest.mark.parametrize("dialect", [NestedDialect, FlatDialect])
def test_the_defaults_of_a_dialect_change_nothing(home: Path, dialect: type[BaseModel]) -> None:
    """A key with the value that it has when it is left out, or an empty one, switches nothing on."""
    keys = {"nested": {"alert": {}}, "flat": {"print_struct": False}}
    assert differences({"monitor_config": keys["flat" if dialect is FlatDialect else "nested"]}) == {}


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (
            {"monitor_config": {"alert": {}, "target": None}},
            "mixes two dialects, of which one has alert and the other target: keep the keys of one",
        ),
        ({"monitor_config": None}, "monitor_config holds no settings"),
        ({"monitor_config": {}}, "monitor_config holds no settings"),
        ({"monitor_config": [1]}, "monitor_config holds no settings"),
        (
            {"monitor_config": {"setp_interval": 1}},
            "'monitor_config.setp_interval' is not a setting: did you mean 'monitor_config.step_interval'",
        ),
        (
            {"monitor_config": {"alert": {"grad_threshold": 1}}},
            "'monitor_config.alert.grad_threshold' is not .* 'monitor_config.alert.grad_norm_threshold'",
        ),
        (
            {"step_interval": 1},
            "'step_interval' is not a setting: it belongs at 'monitor_config.step_interval'",
        ),
        ({"monitor_confg": {}}, "'monitor_confg' is not a setting: did you mean 'monitor_config'"),
        ({"monitor_config": {"step_interval": 0}}, "monitor_config.step_interval is not valid"),
        (
            {"monitor_config": {"local_norm_format": "logg"}},
            r"monitor_config\.local_norm_format\.0 is not valid",
        ),
        (
            {"monitor_config": {"global_norm_spike_count_threshold": 1}},
            "monitor_config.global_norm_spike_count_threshold is not valid: .*greater than or equal to 3",
        ),
    ],
    ids=str,
)
def test_what_is_wrong_is_said_in_one_sentence(document: dict[str, Any], message: str) -> None:
    """Unknown, misplaced and impossible keys, and a mixture of both dialects."""
    with pytest.raises(ConfigError, match=message):
        load_config(document)


@pytest.mark.parametrize(
    ("section", "ours", "path"),
    [
        ({"monitor_on": True}, {"enabled": False}, "enabled"),
        ({"step_interval": 5}, {"sampling": {"grad_norm": 2}}, "sampling.grad_norm"),
        ({"alert": {"enable": False}}, {"limits": [{"signal": "loss", "value": 9}]}, "limits"),
        (
            {"alert": {"grad_norm_threshold": 5}},
            {"limits": [{"signal": "grad_norm", "severity": "warning", "value": 6}]},
            "limits",
        ),
        ({"tensorboard": {"enable": False}}, {"sinks": {"tensorboard": {}}}, "sinks.tensorboard"),
        (
            {"tensorboard": {"log_dir": "/a"}},
            {"sinks": {"tensorboard": {"folder": "/b"}}},
            "sinks.tensorboard.folder",
        ),
        ({"dump_path": "/a"}, {"sinks": {"csv": 3}}, "sinks.csv"),
    ],
    ids=str,
)
def test_the_dialect_and_our_own_settings_must_agree(
    section: dict[str, Any], ours: dict[str, Any], path: str
) -> None:
    """Two values for one thing are an error that names both places."""
    with pytest.raises(ConfigError, match=rf"monitor_config\.\S+ contradicts {path}, which is .*: keep one"):
        load_config({"monitor_config": section, **ours})


def test_the_dialect_and_our_own_settings_complete_each_other(home: Path) -> None:
    """Equal values, and settings that the other does not touch, stand beside each other."""
    config = load_config(
        {
            "monitor_config": {
                "step_interval": 5,
                "log_interval": 5,
                "tensorboard": {"enable": True},
                "alert": {"grad_norm_threshold": 8},
            },
            "sampling": {"grad_norm": 5, "weights": 50},
            "sinks": {"tensorboard": {"folder": "/tb"}, "all_ranks": True},
            "limits": [
                {"signal": "grad_norm", "severity": "warning", "value": 8, "reason": "ours"},
                {"signal": "grad_norm", "severity": "critical", "value": 80},
            ],
        }
    )
    assert (config.sampling.grad_norm, config.sampling.weights) == (5, 50)
    assert config.sinks.tensorboard is not None
    assert str(config.sinks.tensorboard.folder) == "/tb"
    assert config.sinks.csv is None
    assert [(one.value, one.reason) for one in config.limits] == [(8.0, "ours"), (80.0, "")]


def test_a_log_interval_is_that_of_the_sinks_there_are(home: Path) -> None:
    """CSV is only switched on where nothing else is written."""
    config = load_config({"monitor_config": {"log_interval": 5}, "sinks": {"tensorboard": {}}})
    assert (config.sinks.csv, config.sinks.interval_steps) == (None, 5)


def test_a_yaml_file_may_include_the_section(tmp_path: Path) -> None:
    """The section works from a file as from a dict, and an error names that file."""
    (tmp_path / "monitor.yml").write_text("{monitor_on: true, check_for_global_norm: true}\n")
    path = tmp_path / "run.yml"
    path.write_text("monitor_config: !include monitor.yml\nring_records: 128\n")
    config = load_config(path)
    assert (config.limits[0].value, config.ring_records) == (3.0, 128)
    path.write_text("monitor_config: {print_struct: true}\n")
    with pytest.raises(ConfigError, match=r"run\.yml: monitor_config\.print_struct"):
        load_config(path)


def test_an_interval_is_no_demand_that_a_loop_without_optimizer_could_not_meet(home: Path) -> None:
    """A loop that gives its norm to step() may keep step_interval; layers without a model are refused."""
    settings = {"server": {"port": 0, "linger_seconds": 0.0}, "ring_records": 1024}
    section = {"step_interval": 10, "metrics": ["grad_norm"], "alert": {"grad_norm_threshold": 5}}
    with trainswitch.Monitor(run="r", config={**settings, "monitor_config": section}) as monitor:
        monitor.step(loss=1.0, grad_norm=2.0)
        text = monitor._endpoint.aggregator.render()  # type: ignore[union-attr]
        assert sample(text, "train_grad_norm") == 2.0
        assert sample(text, "train_limit", signal="grad_norm", bound="upper", severity="warning") == 5.0
    with pytest.raises(ConfigError, match=r"sampling\.layers = 10 has no effect without model and optimizer"):
        trainswitch.Monitor(
            run="r", config={**settings, "monitor_config": {**section, "metrics": ["layers"]}}
        )
    with pytest.raises(ConfigError, match=r"sampling\.grad_norm = 10 has no effect without optimizer"):
        trainswitch.Monitor(
            run="r", config={**settings, "sampling": {"grad_norm": 10}, "monitor_config": section}
        )


def test_monitor_on_false_switches_the_monitor_off(home: Path) -> None:
    """The switch of the dialects is ours."""
    switch = trainswitch.attach(run="r", config={"monitor_config": {"monitor_on": False}})
    assert isinstance(switch, MonitorOff)
