"""The committed configurations, written for docker-compose.yml, turned into ones for this machine.

Each function takes YAML and returns YAML: addresses of services and paths of mounted files are replaced,
and everything else stays. A container's host or file that has no counterpart here is refused, because a
stack with a dead end in it would look healthy.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import yaml

from trainswitch_controller.cli.errors import RenderError

Addresses = Mapping[str, str]
"""``host:port`` of every service."""
Where = tuple[str | int, ...]

_HOST_AND_PORT = re.compile(r"(?<![\w.:-])([A-Za-z][\w-]*):(\d{2,5})(?!\d)")
_PATH_KEYS = re.compile(r"rule_files|templates|files|\w+_file")
_TARGETS = "/etc/trainswitch/targets/*.json"
_TOKEN = "/run/secrets/trainswitch_alertmanager_token"  # noqa: S105 - a path, not a token


def render_prometheus(text: str, *, source: Path, targets: Path, addresses: Addresses) -> str:
    """Return ``prometheus.yml`` for this machine.

    Args:
        text: the committed file.
        source: its path; relative paths in it are relative to it.
        targets: folder into which trainers write their targets.
        addresses: where every service listens.

    Raises:
        RenderError: the file is not YAML, or something in it would not work here.
    """
    # Prometheus scrapes itself, and in a container that is localhost.
    hosts = {**addresses, "localhost": addresses["prometheus"]}
    return _render(text, source, hosts, {_TARGETS: str(targets / "*.json")})


def render_alertmanager(
    text: str, *, source: Path, token_file: Path, links: Path, addresses: Addresses
) -> str:
    """Return ``alertmanager.yml`` for this machine.

    Args:
        text: the committed file.
        source: its path; relative paths in it are relative to it.
        token_file: what is sent to the controller as bearer token.
        links: templates with the addresses of links in notifications, which replace the committed ones.
        addresses: where every service listens.

    Raises:
        RenderError: the file is not YAML, or something in it would not work here.
    """
    return _render(text, source, addresses, {_TOKEN: str(token_file)}, templates=[str(links)])


def render_links(addresses: Addresses) -> str:
    """Return the templates that say where links in notifications lead: to the services of this machine."""
    links = {
        "trainswitch.grafana": f"http://{addresses['grafana']}",
        "trainswitch.runbooks": f"http://{addresses['controller']}/runbooks",
    }
    return "".join(f'{{{{ define "{name}" }}}}{url}{{{{ end }}}}\n' for name, url in links.items())


def _render(
    text: str,
    source: Path,
    hosts: Mapping[str, str],
    mounts: Mapping[str, str],
    *,
    templates: Sequence[str] = (),
) -> str:
    """Replace the hosts and the mounted paths, each of which must occur; `templates` come after its own."""
    used: set[str] = set()

    def local(where: Where, value: str) -> str:
        if value in mounts:
            used.add(value)
            return mounts[value]
        key = next((part for part in reversed(where) if isinstance(part, str)), "")
        spot = f"{source}: {value!r} at {'.'.join(map(str, where))}"
        return (
            _local_path(spot, source, value) if _PATH_KEYS.fullmatch(key) else _local_host(spot, value, hosts)
        )

    document = _each_string(_load(text, source), (), local)
    if templates:
        document["templates"] = [*document.get("templates", []), *templates]  # the last definition holds
    for mount in mounts:
        if mount not in used:
            raise RenderError(
                f"{source} does not name {mount}, so the local stack would be cut there: put it back."
            )
    head = f"# Written by 'trainswitch stack up' from {source}; changes here are lost.\n"
    return head + yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=120)


def _local_path(spot: str, source: Path, value: str) -> str:
    path = source.parent / value
    if not path.parent.is_dir():
        raise RenderError(
            f"{spot} is in a folder that this machine does not have: name a path beside the file."
        )
    return str(path)


def _local_host(spot: str, value: str, hosts: Mapping[str, str]) -> str:
    def address(match: re.Match[str]) -> str:
        host = match.group(1)
        if host not in hosts:
            raise RenderError(
                f"{spot} names {host!r}, no service of the local stack: use one of {', '.join(hosts)}."
            )
        return hosts[host]

    return _HOST_AND_PORT.sub(address, value)


def _each_string(node: Any, where: Where, change: Callable[[Where, str], str]) -> Any:
    """Return a copy of a YAML document with every string value changed; keys stay."""
    if isinstance(node, str):
        return change(where, node)
    if isinstance(node, dict):
        return {key: _each_string(value, (*where, key), change) for key, value in node.items()}
    if isinstance(node, list):
        return [_each_string(value, (*where, index), change) for index, value in enumerate(node)]
    return node


def _load(text: str, source: Path) -> dict[str, Any]:
    try:
        document = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise RenderError(f"{source} is not YAML: {' '.join(str(error).split())}.") from None
    if not isinstance(document, dict):
        raise RenderError(f"{source} holds no settings: write 'key: value' lines.")
    return cast("dict[str, Any]", document)
