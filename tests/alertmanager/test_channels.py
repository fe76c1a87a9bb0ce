"""The channels of alertmanager.yml, which are commented out until somebody switches them on."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
CONFIG = ROOT / "alertmanager" / "alertmanager.yml"
TEMPLATES = ROOT / "alertmanager" / "templates"
TOKEN = "/run/secrets/trainswitch_alertmanager_token"


def switched_on() -> str:
    """Return alertmanager.yml with every channel switched on, as its own words say how."""
    head, mark, channels = CONFIG.read_text(encoding="utf-8").partition("  ## Critical alerts")
    assert mark
    return head + mark + re.sub(r"^    # ", "    ", channels, flags=re.MULTILINE)


def receivers() -> dict[str, dict[str, Any]]:
    """Return the receivers with all channels on, by name."""
    return {one["name"]: one for one in yaml.safe_load(switched_on())["receivers"]}


def strings(node: Any) -> Iterator[str]:
    """Yield every string in a YAML document."""
    if isinstance(node, str):
        yield node
    elif isinstance(node, (dict, list)):
        for value in node.values() if isinstance(node, dict) else node:
            yield from strings(value)


def test_alertmanager_accepts_every_channel(tmp_path: Path) -> None:
    """What is commented out is valid as soon as the marks are removed, with the templates beside it."""
    amtool = shutil.which("amtool")
    if amtool is None:
        pytest.fail(
            "amtool is not on PATH: install it, on Debian with `apt install prometheus-alertmanager`."
        )
    shutil.copytree(TEMPLATES, tmp_path / "templates")
    (tmp_path / "alertmanager.yml").write_text(switched_on().replace("/run/secrets", str(tmp_path)))
    done = subprocess.run(
        [amtool, "check-config", tmp_path / "alertmanager.yml"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 templates" in done.stdout


def test_every_channel_is_there() -> None:
    """Slack, WeCom and the relay page; e-mail brings warnings and the digest."""
    found = {name: {key for key in one if key != "name"} for name, one in receivers().items()}
    assert found == {
        "controller": {"webhook_configs"},
        "page": {"slack_configs", "wechat_configs", "webhook_configs"},
        "people": {"email_configs"},
        "digest": {"email_configs"},
    }


def test_as_it_stands_nobody_is_told() -> None:
    """The committed file sends nothing to places that are only examples."""
    committed = yaml.safe_load(CONFIG.read_text(encoding="utf-8"))["receivers"]
    assert [one["name"] for one in committed if len(one) > 1] == ["controller"]


def test_channels_use_templates_that_exist() -> None:
    """Alertmanager notices an unknown template only when it has something to tell."""
    used = set(re.findall(r'template "([\w.]+)"', "\n".join(strings(list(receivers().values())))))
    files = "\n".join(path.read_text(encoding="utf-8") for path in TEMPLATES.glob("*.tmpl"))
    defined = set(re.findall(r'define "([\w.]+)"', files))
    assert used
    assert used <= defined
    inside = set(re.findall(r'template "([\w.]+)"', files))
    assert defined == used | inside


def test_secrets_are_read_from_files() -> None:
    """No secret stands in the configuration where this Alertmanager can read it from a file."""
    text = switched_on()
    assert set(re.findall(r"(\w*(?:secret|password|api_url|credentials)\w*):", text)) == {
        "api_url_file",
        "api_secret",  # Alertmanager 0.25 knows no file for it
        "auth_password_file",
        "credentials_file",
    }
    assert "api_secret: REPLACE_ME" in text


def test_the_relay_is_called_as_the_controller_expects() -> None:
    """The relay's address is the controller's, with the token that its webhook needs."""
    (webhook,) = receivers()["page"]["webhook_configs"]
    assert webhook["url"] == "http://controller:9095/api/v1/relays/sms"
    assert webhook["http_config"]["authorization"]["credentials_file"] == TOKEN


def test_all_who_are_told_of_a_trouble_are_told_of_its_end() -> None:
    """A channel without send_resolved would leave people with an alarm that has long ended."""
    for receiver in receivers().values():
        for key, channels in receiver.items():
            if key != "name":
                assert all(channel["send_resolved"] is True for channel in channels), receiver["name"]
