"""How each service of the stack is started, and how it says that it is ready."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from trainswitch_controller.cli.assets import assets_folder
from trainswitch_controller.cli.stack.record import ServiceName, stack_folder
from trainswitch_controller.cli.stack.render import Addresses
from trainswitch_controller.cli.tokens import alertmanager_token_path, operator_token_path

READY_PATHS: dict[ServiceName, str] = {
    "prometheus": "/-/ready",
    "alertmanager": "/-/ready",
    "controller": "/-/ready",
    "grafana": "/api/health",
}


@dataclass(frozen=True)
class Launch:
    """What starts a service."""

    arguments: list[str]
    environment: dict[str, str]


def launch_of(
    name: ServiceName,
    *,
    home: Path,
    policy: Path,
    binaries: Mapping[ServiceName, Path],
    addresses: Addresses,
) -> Launch:
    """Return the command line and environment that start a service of the stack in `home`.

    Its configuration must have been rendered before.
    """
    stack = stack_folder(home)
    environment = dict(os.environ)
    address = addresses[name]
    host, port = address.split(":")
    if name == "prometheus":
        arguments = [
            f"--config.file={stack / 'prometheus.yml'}",
            f"--storage.tsdb.path={stack / 'prometheus'}",
            "--storage.tsdb.retention.time=2d",
            f"--web.listen-address={address}",
            f"--web.external-url=http://{address}/",
            # An alert that Alertmanager missed is sent again after this long, not after a minute.
            "--rules.alert.resend-delay=5s",
        ]
    elif name == "alertmanager":
        arguments = [
            f"--config.file={stack / 'alertmanager.yml'}",
            f"--storage.path={stack / 'alertmanager'}",
            f"--web.listen-address={address}",
            f"--web.external-url=http://{address}/",
            "--cluster.listen-address=",  # one instance: no gossip, no port for it
        ]
    elif name == "controller":
        # The folder of a user's training script is no place to import from.
        environment["PYTHONSAFEPATH"] = "1"
        module = ["-m", "trainswitch_controller", "serve", f"--host={host}", f"--port={port}"]
        options = {
            "home": home,
            "control-dir": home / "control",
            "journal": f"sqlite:///{home / 'journal.db'}",
            "policy": policy,
            "alertmanager-token-file": alertmanager_token_path(home),
            "operator-token-file": operator_token_path(home),
            "prometheus": f"http://{addresses['prometheus']}",
        }
        return Launch(
            [sys.executable, *module, *(f"--{option}={value}" for option, value in options.items())],
            environment,
        )
    else:
        arguments = [f"--homepath={_grafana_homepath(binaries['grafana'])}"]
        if binaries["grafana"].name == "grafana":
            arguments.insert(0, "server")
        environment.update(_grafana_environment(stack, host, port, addresses["prometheus"]))
    return Launch([str(binaries[name]), *arguments], environment)


def _grafana_environment(stack: Path, host: str, port: str, prometheus: str) -> dict[str, str]:
    """Return Grafana's settings: everybody on this machine may look, nobody can log in and change."""
    grafana = assets_folder() / "grafana"
    dashboards = grafana / "dashboards"
    return {
        "GF_SERVER_HTTP_ADDR": host,
        "GF_SERVER_HTTP_PORT": port,
        "GF_PATHS_DATA": str(stack / "grafana" / "data"),
        "GF_PATHS_LOGS": str(stack / "grafana" / "logs"),
        "GF_PATHS_PLUGINS": str(stack / "grafana" / "plugins"),
        "GF_PATHS_PROVISIONING": str(grafana / "provisioning"),
        # The provisioning files name these two.
        "TRAINSWITCH_DASHBOARDS": str(dashboards),
        "TRAINSWITCH_PROMETHEUS_URL": f"http://{prometheus}",
        "GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH": str(dashboards / "trainswitch-run.json"),
        "GF_AUTH_ANONYMOUS_ENABLED": "true",
        "GF_AUTH_ANONYMOUS_ORG_ROLE": "Viewer",
        "GF_SECURITY_DISABLE_INITIAL_ADMIN_CREATION": "true",
        "GF_ANALYTICS_REPORTING_ENABLED": "false",
        "GF_ANALYTICS_CHECK_FOR_UPDATES": "false",
        "GF_ANALYTICS_CHECK_FOR_PLUGIN_UPDATES": "false",
    }


def _grafana_homepath(binary: Path) -> Path:
    """Return the folder with Grafana's own ``conf`` and ``public``: around the binary, or its package's."""
    around = binary.resolve().parents[1]
    return around if (around / "conf" / "defaults.ini").is_file() else Path("/usr/share/grafana")
