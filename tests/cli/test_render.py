"""The committed configurations become ones for this machine, and nothing in them is lost on the way."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from trainswitch_controller.cli.assets import assets_folder
from trainswitch_controller.cli.errors import RenderError
from trainswitch_controller.cli.stack.render import render_alertmanager, render_links, render_prometheus

ADDRESSES = {
    "prometheus": "127.0.0.1:1",
    "alertmanager": "127.0.0.1:2",
    "controller": "127.0.0.1:3",
    "grafana": "127.0.0.1:4",
}
ROOT = assets_folder()
TARGETS = Path("/home/me/my runs/targets")
LINKS = Path("/home/me/stack/links.tmpl")
PROMETHEUS = """
global: {scrape_interval: 15s}
rule_files: [rules/*.yml]
alerting:
  alertmanagers:
    - static_configs:
        - targets: [alertmanager:9093]
scrape_configs:
  - job_name: trainswitch
    honor_labels: true
    sample_limit: 10000
    file_sd_configs:
      - files: [/etc/trainswitch/targets/*.json]
        refresh_interval: 5s
  - job_name: prometheus
    static_configs:
      - targets: [localhost:9090, controller:9095]
        labels: {zone: here}
"""
ALERTMANAGER = """
route: {receiver: people, group_wait: 30s}
templates: ["*.tmpl"]
receivers:
  - name: controller
    webhook_configs:
      - url: http://controller:9095/api/v1/alerts
        http_config:
          authorization:
            credentials_file: /run/secrets/trainswitch_alertmanager_token
  - name: people
    webhook_configs:
      - url: https://chat.example.org:8443/hook
"""


def prometheus(text: str) -> dict[str, Any]:
    """Render `text` as a prometheus.yml and parse the result."""
    rendered = render_prometheus(
        text, source=ROOT / "prometheus" / "prometheus.yml", targets=TARGETS, addresses=ADDRESSES
    )
    document = yaml.safe_load(rendered)
    assert isinstance(document, dict)
    return document


def alertmanager(text: str) -> dict[str, Any]:
    """Render `text` as an alertmanager.yml and parse the result."""
    rendered = render_alertmanager(
        text,
        source=ROOT / "alertmanager" / "alertmanager.yml",
        token_file=Path("/home/me/tokens/alertmanager"),
        links=LINKS,
        addresses=ADDRESSES,
    )
    document = yaml.safe_load(rendered)
    assert isinstance(document, dict)
    return document


def test_prometheus_gets_local_paths_and_addresses_and_keeps_the_rest() -> None:
    """Rule files, file_sd and every target are replaced; all other settings come out as they went in."""
    expected = yaml.safe_load(PROMETHEUS)
    expected["rule_files"] = [str(ROOT / "prometheus" / "rules" / "*.yml")]
    expected["alerting"]["alertmanagers"][0]["static_configs"][0]["targets"] = ["127.0.0.1:2"]
    trainers, prometheus_itself = expected["scrape_configs"]
    trainers["file_sd_configs"][0]["files"] = ["/home/me/my runs/targets/*.json"]
    prometheus_itself["static_configs"][0]["targets"] = ["127.0.0.1:1", "127.0.0.1:3"]
    assert expected == prometheus(PROMETHEUS)


def test_alertmanager_gets_the_local_controller_and_token_and_keeps_the_rest() -> None:
    """The webhook's address, the token's file and the templates are replaced; an outside address stays."""
    expected = yaml.safe_load(ALERTMANAGER)
    hook = expected["receivers"][0]["webhook_configs"][0]
    hook["url"] = "http://127.0.0.1:3/api/v1/alerts"
    hook["http_config"]["authorization"]["credentials_file"] = "/home/me/tokens/alertmanager"
    expected["templates"] = [str(ROOT / "alertmanager" / "*.tmpl"), str(LINKS)]
    assert expected == alertmanager(ALERTMANAGER)


def test_a_service_without_a_local_address_is_refused() -> None:
    """A host that only docker-compose knows is named together with the place where it stands."""
    text = PROMETHEUS.replace("controller:9095", "pushgateway:9091")
    with pytest.raises(RenderError, match=r"'pushgateway:9091' at scrape_configs.1.* names 'pushgateway'"):
        prometheus(text)


def test_a_path_in_a_container_is_refused() -> None:
    """A mounted file that has no local counterpart is named, instead of failing later in a log."""
    text = ALERTMANAGER.replace(
        "url: https://chat.example.org:8443/hook", "url_file: /etc/no-such-folder/url"
    )
    with pytest.raises(RenderError, match=r"'/etc/no-such-folder/url' at receivers.1.* does not have"):
        alertmanager(text)


def test_other_files_are_found_where_they_are(tmp_path: Path) -> None:
    """Files of the user's own stay: absolute ones as they are, others beside the file."""
    secret = tmp_path / "secret"
    text = ALERTMANAGER.replace("url: https://chat.example.org:8443/hook", f"url_file: {secret}")
    assert alertmanager(text)["receivers"][1]["webhook_configs"][0]["url_file"] == str(secret)
    text = PROMETHEUS.replace("rules/*.yml", f"rules/*.yml, {tmp_path}/*.yml")
    assert prometheus(text)["rule_files"][1] == f"{tmp_path}/*.yml"


def test_only_the_controller_is_sent_the_controller_s_token(tmp_path: Path) -> None:
    """Another receiver's credentials are not replaced by the token."""
    text = (
        ALERTMANAGER
        + f"""        http_config: {{authorization: {{credentials_file: {tmp_path}/chat}}}}
"""
    )
    hook = alertmanager(text)["receivers"][1]["webhook_configs"][0]
    assert hook["http_config"]["authorization"]["credentials_file"] == f"{tmp_path}/chat"


def test_a_configuration_that_would_be_cut_off_is_refused() -> None:
    """Without discovery or without the token, a stack would look healthy and do nothing."""
    with pytest.raises(RenderError, match=r"does not name /etc/trainswitch/targets/\*.json"):
        prometheus(PROMETHEUS.replace("/etc/trainswitch/targets", str(ROOT)))
    with pytest.raises(RenderError, match="does not name /run/secrets/trainswitch_alertmanager_token"):
        alertmanager(ALERTMANAGER.replace("/run/secrets/trainswitch_alertmanager_token", str(ROOT)))


@pytest.mark.parametrize("text", ["a: [", "- just\n- a list\n", ""])
def test_what_is_no_configuration_is_refused(text: str) -> None:
    """Broken YAML and YAML without settings are named by their file."""
    with pytest.raises(RenderError, match=r"/prometheus/prometheus.yml"):
        prometheus(text)


def test_the_committed_files_render() -> None:
    """What the repository ships has no name that the local stack cannot resolve."""
    source = ROOT / "prometheus" / "prometheus.yml"
    render_prometheus(source.read_text(), source=source, targets=TARGETS, addresses=ADDRESSES)
    source = ROOT / "alertmanager" / "alertmanager.yml"
    render_alertmanager(
        source.read_text(), source=source, token_file=TARGETS, links=LINKS, addresses=ADDRESSES
    )


def test_links_in_notifications_lead_to_this_machine(tmp_path: Path) -> None:
    """The stack's addresses replace the committed ones, because their definitions come later."""
    links = tmp_path / "links.tmpl"
    links.write_text(render_links(ADDRESSES))
    committed = f"--template.glob={ROOT / 'alertmanager' / 'templates'}/*.tmpl"
    both = '{{ template "trainswitch.grafana" . }} {{ template "trainswitch.runbooks" . }}'
    done = subprocess.run(
        [
            "amtool",
            "template",
            "render",
            committed,
            f"--template.glob={links}",
            f"--template.text={both}",
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "http://127.0.0.1:4 http://127.0.0.1:3/runbooks"
