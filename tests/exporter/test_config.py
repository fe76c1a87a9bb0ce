"""Settings: defaults, files, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from trainswitch.config import MonitorConfig, load_config
from trainswitch.errors import ConfigError


def test_defaults_are_on_loopback_below_the_home(home: Path) -> None:
    """Without settings everything lies below the home folder, and the endpoint is on loopback."""
    config = load_config(None)
    assert config.server.host == "127.0.0.1"
    assert config.control.folder == home / "control"
    assert config.server.targets_dir == home / "targets"
    assert config.checkpoint.folder == home / "checkpoints"


def test_a_file_may_include_another(tmp_path: Path) -> None:
    """!include stands for the content of a file beside it."""
    (tmp_path / "limits.yml").write_text("- {signal: loss, value: 20.0, reason: above chance}\n")
    (tmp_path / "run.yml").write_text("limits: !include limits.yml\nstatistics: {warmup_steps: 7}\n")
    config = load_config(tmp_path / "run.yml")
    assert config.limits[0].reason == "above chance"
    assert config.statistics.effective_warmup_steps == 7


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sever: {}", "'sever' is not a setting: did you mean 'server'"),
        ("warmup_steps: 3", "'warmup_steps' is not a setting: it belongs at 'statistics.warmup_steps'"),
        ("server: {prot: 1}", "'server.prot' is not a setting: did you mean 'server.port'"),
        ("server: {port: 70000}", "server.port is not valid"),
        ("server: {tls_cert: a.pem}", "tls_cert and tls_key belong together"),
        ("limits: [{signal: loss, value: .nan}]", r"limits\.0\.value is not valid"),
        ("limits: [{signal: loss, value: 1}, {signal: loss, value: 2}]", "more than once"),
        ("- 1", "holds a list, not settings"),
        ("a: [", "is not YAML"),
        ("server: !include missing.yml", "cannot read configuration .*missing.yml"),
        ("server: !include run.yml", "includes itself"),
        ("run: !!python/object/apply:os.system [id]", "is not YAML"),
    ],
)
def test_a_setting_without_effect_is_refused(tmp_path: Path, text: str, message: str) -> None:
    """Unknown, misplaced and impossible settings are one sentence that says where and what instead."""
    path = tmp_path / "run.yml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        load_config(path)


def test_an_empty_file_is_the_defaults(tmp_path: Path) -> None:
    """A file with only comments sets nothing."""
    path = tmp_path / "run.yml"
    path.write_text("# nothing yet\n")
    assert load_config(path) == MonitorConfig()


@pytest.mark.parametrize(
    ("settings", "steps"),
    [({}, 1000), ({"total_steps": 100_000}, 1000), ({"total_steps": 500}, 50), ({"total_steps": 50}, 20),
     ({"warmup_steps": 3, "total_steps": 500}, 3)],
)  # fmt: skip
def test_the_warm_up_fits_the_run(settings: dict[str, Any], steps: int) -> None:
    """A thousand steps, or a tenth of a short run, or what is asked for."""
    assert load_config({"statistics": settings}).statistics.effective_warmup_steps == steps


def test_the_hash_changes_with_the_settings() -> None:
    """Two runs with the same hash had the same settings."""
    assert load_config({}).sha256 == load_config(None).sha256
    assert load_config({"ring_records": 128}).sha256 != load_config(None).sha256
