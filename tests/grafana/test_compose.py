"""docker-compose.yml and what it mounts: valid, pinned, closed to the outside, and consistent.

No container is started here; the files are checked against the Compose specification and against each other.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml
from compose_spec import PyOptions

ROOT = Path(__file__).resolve().parents[2]
COMPOSE = ROOT / "docker-compose.yml"
EXACT_TAG = re.compile(r"[\w./-]+:v?\d+\.\d+\.\d+(-[\w.-]+)?")
ONE_SHOT = "setup"
READER_USERS = {"alertmanager_token": 65534, "operator_token": 65534, "grafana_admin_password": 472}


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    """Return docker-compose.yml with its anchors merged."""
    loaded: dict[str, Any] = yaml.safe_load(COMPOSE.read_text(encoding="utf-8"))
    return loaded


@pytest.fixture(scope="module")
def services(compose: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the services that run all the time."""
    return {name: service for name, service in compose["services"].items() if name != ONE_SHOT}


@pytest.fixture(scope="module")
def prometheus() -> dict[str, Any]:
    """Return prometheus.yml."""
    loaded: dict[str, Any] = yaml.safe_load((ROOT / "prometheus/prometheus.yml").read_text(encoding="utf-8"))
    return loaded


@pytest.fixture(scope="module")
def alertmanager() -> dict[str, Any]:
    """Return alertmanager.yml."""
    path = ROOT / "alertmanager/alertmanager.yml"
    loaded: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return loaded


def mounts(service: dict[str, Any]) -> list[tuple[str, str]]:
    """Return (source, path in the container) of a service's volumes."""
    pairs = [volume.split(":")[:2] for volume in service.get("volumes", [])]
    return [(source, target) for source, target in pairs]


def secret_paths(service: dict[str, Any]) -> dict[str, str]:
    """Return the path in the container of each secret that a service is given, with the secret's name."""
    paths = {}
    for secret in service.get("secrets", []):
        source, target = (secret, secret) if isinstance(secret, str) else (secret["source"], secret["target"])
        paths[f"/run/secrets/{target}"] = source
    return paths


def values_of(document: object, key: str) -> Iterator[Any]:
    """Yield what stands under `key`, anywhere in `document`."""
    if isinstance(document, dict):
        for name, value in document.items():
            if name == key:
                yield value
            yield from values_of(value, key)
    elif isinstance(document, list):
        for value in document:
            yield from values_of(value, key)


def test_file_follows_the_compose_specification() -> None:
    """The file parses under the Compose specification, which refuses unknown keys and undefined secrets."""
    parsed = PyOptions(apply_merge=True).from_yaml(COMPOSE.read_text(encoding="utf-8"))
    parsed.validate()
    assert set(parsed.service_names()) == {
        "alertmanager",
        "controller",
        "grafana",
        "prometheus",
        "setup",
        "trainer",
    }


@pytest.mark.parametrize(
    ("right", "wrong"),
    [("healthcheck:", "healthchecks:"), ("condition: service_healthy", "condition: service_ready")],
)
def test_validation_sees_mistakes(right: str, wrong: str) -> None:
    """The check above is one that fails: a misspelt key and an unknown condition are refused."""
    with pytest.raises(ValueError, match=wrong.split()[-1].rstrip(":")):
        PyOptions(apply_merge=True).from_yaml(COMPOSE.read_text(encoding="utf-8").replace(right, wrong, 1))


def test_images_are_pinned(compose: dict[str, Any]) -> None:
    """Every image, also the base of those built here, has an exact version; nothing floats."""
    stages = re.findall(
        r"^FROM (\S+)(?: AS (\S+))?$", (ROOT / "Dockerfile").read_text(encoding="utf-8"), re.MULTILINE
    )
    names = {stage for _, stage in stages}
    images = {image for image, _ in stages if image not in names}
    for name, service in compose["services"].items():
        if "build" in service:
            assert service["build"]["target"] in names, name
        else:
            images.add(service["image"])
    assert [image for image in images if not EXACT_TAG.fullmatch(image)] == []


def test_services_are_healthy_before_others_need_them(services: dict[str, dict[str, Any]]) -> None:
    """Every service has a health check, and whoever depends on one waits for it."""
    for name, service in services.items():
        assert service["healthcheck"]["test"][0] == "CMD", name
        for needed, how in service.get("depends_on", {}).items():
            assert needed in services, name
            assert how == {"condition": "service_healthy"}, name


def test_nothing_is_published_beyond_loopback(compose: dict[str, Any]) -> None:
    """Every published port is bound to this machine's loopback; the trainer's endpoint is not published."""
    for name, service in compose["services"].items():
        for port in service.get("ports", []):
            assert port.startswith("127.0.0.1:"), name
    assert "ports" not in compose["services"]["trainer"]


def test_containers_are_hardened(compose: dict[str, Any]) -> None:
    """Every container is read-only and without privileges; only the one-shot that hands out files is root."""
    for name, service in compose["services"].items():
        assert service["read_only"] is True, name
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert ("cap_add" in service) == (name == ONE_SHOT), name
        assert (service.get("user") == "0:0") == (name == ONE_SHOT), name
    assert "USER 65534:65534" in (ROOT / "Dockerfile").read_text(encoding="utf-8")


def test_mounts_exist(compose: dict[str, Any]) -> None:
    """Every mounted path is in the repository and every volume is declared; only secrets are made later."""
    used = set()
    for name, service in compose["services"].items():
        for source, _ in mounts(service):
            if not source.startswith("."):
                used.add(source)
            elif source != "./secrets":
                assert (ROOT / source).exists(), f"{name}: {source}"
    assert used == set(compose["volumes"])


def test_mounts_and_ports_are_explained(compose: dict[str, Any]) -> None:
    """The line of every mount and port says what it is for."""
    explained = set(
        re.findall(r'^\s+- "?([^"\s]+)"? # \S', COMPOSE.read_text(encoding="utf-8"), re.MULTILINE)
    )
    for name, service in compose["services"].items():
        assert {*service.get("volumes", []), *service.get("ports", [])} <= explained, name


def test_secrets_stay_out_of_repository_and_images(compose: dict[str, Any]) -> None:
    """Secrets come from files below ./secrets, which git ignores and the images' build never sees."""
    assert {Path(secret["file"]).parent for secret in compose["secrets"].values()} == {Path("secrets")}
    ignored = (ROOT / ".gitignore").read_text(encoding="utf-8").split()
    assert {"secrets/", "/secrets/"} & set(ignored)
    build_context = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    patterns = [line for line in build_context if line and not line.startswith("#")]
    assert patterns[0] == "*"
    assert not [pattern for pattern in patterns if "secrets" in pattern]


def test_images_get_what_the_package_needs() -> None:
    """The build context lets every file in that pyproject.toml packs into the wheel."""
    let_in = {
        line[1:]
        for line in (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
        if line.startswith("!")
    }
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    packed = re.findall(r'^"([\w/]+)" = "trainswitch_controller/assets/', text, re.MULTILINE)
    assert packed
    assert {*packed, "exporter", "controller", "pyproject.toml", "README.md", "LICENSE"} <= let_in


@pytest.mark.skipif(os.geteuid() != 0, reason="handing a file to another user needs root")
def test_setup_makes_secrets_that_only_their_reader_can_read(compose: dict[str, Any], tmp_path: Path) -> None:
    """The one-shot makes each secret for the user of the container that reads it, and never replaces one."""
    setup = compose["services"][ONE_SHOT]
    (script,) = setup["command"]
    command = [*setup["entrypoint"], script.replace("$$", "$")]

    subprocess.run(command, cwd=tmp_path, check=True)
    made = {path.name: path.read_text(encoding="ascii") for path in tmp_path.iterdir()}
    assert made.keys() == READER_USERS.keys() == compose["secrets"].keys()
    assert len(set(made.values())) == len(made)
    for name, user in READER_USERS.items():
        status = (tmp_path / name).stat()
        assert (status.st_uid, status.st_mode & 0o777) == (user, 0o400)
        assert re.fullmatch(r"[A-Za-z0-9]{32,}", made[name])

    subprocess.run(command, cwd=tmp_path, check=True)
    assert {path.name: path.read_text(encoding="ascii") for path in tmp_path.iterdir()} == made


def test_secrets_belong_to_their_readers(
    compose: dict[str, Any], services: dict[str, dict[str, Any]]
) -> None:
    """Each service runs as the user to whom the one-shot gives its secrets."""
    for name, service in services.items():
        user = int(service["user"].split(":")[0]) if "user" in service else 65534
        assert {READER_USERS[secret] for secret in secret_paths(service).values()} <= {user}, name


def test_addresses_are_those_of_the_services(
    services: dict[str, dict[str, Any]], prometheus: dict[str, Any], alertmanager: dict[str, Any]
) -> None:
    """Each address in prometheus.yml, alertmanager.yml and Grafana's source is a service with its port."""
    published = {
        f"{name}:{port.rpartition(':')[2]}"
        for name, service in services.items()
        for port in service.get("ports", [])
    }
    named = {address for targets in values_of(prometheus, "targets") for address in targets}
    named |= {
        urlsplit(url).netloc for url in values_of(alertmanager, "url") if "." not in urlsplit(url).netloc
    }
    named.add(urlsplit(services["grafana"]["environment"]["TRAINSWITCH_PROMETHEUS_URL"]).netloc)
    assert named - {"localhost:9090"} <= published
    assert {"alertmanager:9093", "controller:9095", "prometheus:9090"} <= named


def test_paths_in_configurations_are_mounted(
    services: dict[str, dict[str, Any]], prometheus: dict[str, Any], alertmanager: dict[str, Any]
) -> None:
    """Target files, tokens, policy and provisioned folders lie where compose puts them."""
    target_folders = {target for source, target in mounts(services["prometheus"]) if source == "targets"}
    files = [path for paths in values_of(prometheus, "files") for path in paths]
    assert {str(Path(path).parent) for path in files} == target_folders

    tokens = set(values_of(alertmanager, "credentials_file"))
    assert tokens == set(secret_paths(services["alertmanager"]))

    controller = services["controller"]
    command = controller["command"]
    assert {
        command[command.index(f"--{role}-token-file") + 1] for role in ("alertmanager", "operator")
    } == set(secret_paths(controller))
    assert controller["environment"]["TRAINSWITCH_TOKEN_FILE"] in secret_paths(controller)
    places = {target for _, target in mounts(controller)}
    assert command[command.index("--policy") + 1] in places
    assert command[command.index("--control-dir") + 1] in places

    grafana = services["grafana"]
    assert grafana["environment"]["GF_SECURITY_ADMIN_PASSWORD__FILE"] in secret_paths(grafana)
    assert grafana["environment"]["TRAINSWITCH_DASHBOARDS"] in {target for _, target in mounts(grafana)}


def test_provisioning_uses_only_variables_that_are_set(services: dict[str, dict[str, Any]]) -> None:
    """Grafana replaces an unset variable by nothing, so each that its provisioning uses is set."""
    set_here = set(services["grafana"]["environment"])
    for path in (ROOT / "grafana/provisioning").rglob("*.yml"):
        content = yaml.safe_dump(yaml.safe_load(path.read_text(encoding="utf-8")))
        assert set(re.findall(r"\$\{?(\w+)", content)) <= set_here, path


def test_trainer_shares_the_protocol_with_the_others(services: dict[str, dict[str, Any]]) -> None:
    """The trainer's folders are the controller's and Prometheus', and its endpoint has the service's name."""
    trainer, controller = services["trainer"], services["controller"]
    home = trainer["environment"]["TRAINSWITCH_HOME"]
    assert dict(mounts(trainer))["control"] == f"{home}/control"
    assert dict(mounts(controller))["control"] == f"{home}/control"
    assert dict(mounts(trainer))["targets"] == f"{home}/targets"
    assert "targets:/etc/trainswitch/targets:ro" in services["prometheus"]["volumes"]
    assert trainer["environment"]["TRAINSWITCH_HOST"] == "0.0.0.0"
    assert trainer["environment"]["TRAINSWITCH_ADVERTISE"] == "trainer"
