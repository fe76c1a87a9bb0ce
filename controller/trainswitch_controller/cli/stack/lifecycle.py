"""Bringing the stack up, looking at it, and taking it down."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import requests
from filelock import FileLock, Timeout

from trainswitch.version import version as own_version
from trainswitch_controller.cli.assets import default_policy
from trainswitch_controller.cli.errors import StackError
from trainswitch_controller.cli.stack.binaries import binary_version, find_binaries
from trainswitch_controller.cli.stack.configure import write_configurations
from trainswitch_controller.cli.stack.ports import DEFAULT_PORTS, LOOPBACK, PortWish, choose_ports
from trainswitch_controller.cli.stack.processes import find_running, log_tail, spawn, terminate
from trainswitch_controller.cli.stack.record import (
    ServiceName,
    ServiceProcess,
    Stack,
    load_stack,
    save_stack,
    stack_folder,
)
from trainswitch_controller.cli.stack.render import Addresses
from trainswitch_controller.cli.stack.services import READY_PATHS, launch_of
from trainswitch_controller.cli.tokens import alertmanager_token_path, ensure_token, operator_token_path

Progress = Callable[[str], None]
"""Takes one sentence for people about each thing that is done."""

_LOCK_TIMEOUT_S = 120.0
_GRACE_S = 10.0
_PROBE_INTERVAL_S = 0.1


def start_stack(
    home: Path,
    *,
    policy: Path | None = None,
    prometheus_port: int | None = None,
    alertmanager_port: int | None = None,
    controller_port: int | None = None,
    grafana_port: int | None = None,
    bin_dirs: Sequence[Path] = (),
    ready_timeout_s: float = 60.0,
    on_progress: Progress = lambda _: None,
) -> Stack:
    """Start what is not running of the stack in `home`, and return it once all of it is ready.

    Where it fails, or is interrupted, what it started is ended again.

    Args:
        home: folder that trainers and the stack share; made if missing.
        policy: the controller's policy; conservative.yml where None.
        prometheus_port: port to insist on; where None 9090, or any free one.
        alertmanager_port: likewise, 9093.
        controller_port: likewise, 9095.
        grafana_port: likewise, 3000.
        bin_dirs: folders in which binaries are looked for before PATH.
        ready_timeout_s: longest time until every service is ready.
        on_progress: told what is being done.

    Raises:
        MissingBinary: Prometheus or Alertmanager is not installed.
        PortInUse: a port that was insisted on is taken.
        StackError: a service does not start or does not become ready, or another stack runs in `home`.
    """
    home = home.absolute()
    asked: dict[ServiceName, int | None] = {
        "prometheus": prometheus_port,
        "alertmanager": alertmanager_port,
        "controller": controller_port,
        "grafana": grafana_port,
    }
    with _exclusive(home, on_progress):
        recorded = load_stack(home)
        running = _only_running(recorded) if recorded is not None else Stack(home, default_policy(), ())
        _refuse_contradictions(running, asked, policy)
        if policy is not None:
            running = replace(running, policy=policy.absolute())
        elif not running.processes:
            running = replace(running, policy=default_policy())
        binaries = find_binaries(bin_dirs)
        missing = [
            name
            for name in DEFAULT_PORTS
            if running.find(name) is None and (name == "controller" or name in binaries)
        ]
        if "grafana" not in binaries and running.find("grafana") is None:
            if grafana_port is not None:
                raise StackError(
                    "--grafana-port has no effect, because Grafana is not installed: leave it out."
                )
            on_progress("Grafana is not installed; the stack does without its dashboards.")
        if not missing:
            on_progress("The stack is already running.")
        wishes = _port_wishes(missing, asked, recorded if running.processes else None)
        ports = choose_ports(wishes)
        for name, wish in wishes.items():
            if ports[name] != wish.port:
                on_progress(f"Port {wish.port} is taken, so {name} takes {ports[name]}.")
        return _complete(running, ports, binaries, ready_timeout_s, on_progress)


def stop_stack(home: Path, *, on_progress: Progress = lambda _: None) -> tuple[ServiceProcess, ...]:
    """End the processes of the stack in `home` and return those that were still running.

    A process counts only if its pid and the time of its start are those on record.

    Raises:
        StackError: the record cannot be read, or a process belongs to another user.
    """
    home = home.absolute()
    if load_stack(home) is None:
        return ()
    with _exclusive(home, on_progress):
        recorded = load_stack(home)
        if recorded is None:
            return ()
        running = _only_running(recorded).processes
        for process in running:
            on_progress(f"Ending {process.name} (process {process.pid}).")
        terminate(running, _GRACE_S)
        save_stack(replace(recorded, processes=()))
        return running


def probe_stack(stack: Stack) -> dict[ServiceName, str]:
    """Return the state of each process of `stack`: ``ready``, ``not ready`` or ``dead``."""
    with _local_session() as session:
        return {
            process.name: "dead"
            if find_running(process) is None
            else ("ready" if _is_ready(session, process) else "not ready")
            for process in stack.processes
        }


@contextmanager
def _exclusive(home: Path, on_progress: Progress) -> Iterator[None]:
    """Keep every other ``up`` and ``down`` of this home out."""
    folder = stack_folder(home)
    try:
        for needed in (home / "control", home / "targets", folder):
            needed.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / "stack.lock")
        try:
            lock.acquire(timeout=0)
        except Timeout:
            on_progress("Waiting for another 'trainswitch stack' of this home to finish.")
            lock.acquire(timeout=_LOCK_TIMEOUT_S)
    except Timeout:
        raise StackError(
            f"another 'trainswitch stack' is at work in {home} since {_LOCK_TIMEOUT_S:g} s: end it, or wait."
        ) from None
    except OSError as error:
        raise StackError(
            f"cannot write {folder}: {error.strerror or error}; "
            "make it writable, or choose another home with --home."
        ) from error
    try:
        yield
    finally:
        lock.release()


def _only_running(stack: Stack) -> Stack:
    return replace(stack, processes=tuple(process for process in stack.processes if find_running(process)))


def _refuse_contradictions(
    running: Stack, asked: Mapping[ServiceName, int | None], policy: Path | None
) -> None:
    """Refuse wishes that a running stack does not meet; they would be ignored otherwise."""
    for process in running.processes:
        if asked[process.name] not in {None, process.port}:
            raise StackError(
                f"{process.name} is already running on port {process.port}, not {asked[process.name]}: "
                "run 'trainswitch stack down' first."
            )
    if running.find("controller") is not None and policy is not None and policy.absolute() != running.policy:
        raise StackError(
            f"the controller is already running with {running.policy}, not {policy}: "
            "run 'trainswitch stack down' first."
        )


def _port_wishes(
    names: Iterable[ServiceName], asked: Mapping[ServiceName, int | None], beside: Stack | None
) -> dict[ServiceName, PortWish]:
    """Return the port each service should have; `beside` is what the rest of a running stack was told."""
    wishes = {}
    for name in names:
        before = beside.find(name) if beside is not None else None
        port = asked[name]
        if before is not None and port in {None, before.port}:
            way_out = "the rest of the stack expects it there; run 'trainswitch stack down', then 'up' again."
            wishes[name] = PortWish(before.port, fixed=True, way_out=way_out)
        elif before is not None:
            raise StackError(
                f"the rest of the stack expects {name} on port {before.port}, not {port}: "
                "run 'trainswitch stack down' first."
            )
        elif port is not None:
            way_out = f"end what listens there, or leave --{name}-port out to take any free one."
            wishes[name] = PortWish(port, fixed=True, way_out=way_out)
        else:
            wishes[name] = PortWish(DEFAULT_PORTS[name], fixed=False)
    return wishes


def _addresses(running: Stack, ports: Mapping[ServiceName, int]) -> dict[str, str]:
    """Return ``host:port`` of every service; Grafana has its default one where it is not installed."""
    known = {**DEFAULT_PORTS, **{process.name: process.port for process in running.processes}, **ports}
    return {name: f"{LOOPBACK}:{port}" for name, port in known.items()}


def _complete(
    running: Stack,
    ports: Mapping[ServiceName, int],
    binaries: Mapping[ServiceName, Path],
    ready_timeout_s: float,
    on_progress: Progress,
) -> Stack:
    """Start the services that `ports` names beside those that run, and wait for all; or undo it."""
    stack, started = running, []
    try:
        addresses = _addresses(running, ports)
        if ports:
            write_configurations(running.home, addresses)
        for name in ports:
            started.append(_start(name, stack, binaries, addresses, on_progress))
            # One by one, so that a record of every process survives whatever happens next.
            stack = replace(running, processes=(*running.processes, *started))
            save_stack(stack)
        _wait_until_ready(stack, ready_timeout_s, on_progress)
    except BaseException:
        terminate(started, _GRACE_S)
        save_stack(running)
        raise
    return stack


def _start(
    name: ServiceName,
    stack: Stack,
    binaries: Mapping[ServiceName, Path],
    addresses: Addresses,
    on_progress: Progress,
) -> ServiceProcess:
    if name == "controller":
        ensure_token(alertmanager_token_path(stack.home))
        ensure_token(operator_token_path(stack.home))
        version = own_version()
    else:
        version = binary_version(binaries[name])
    launch = launch_of(name, home=stack.home, policy=stack.policy, binaries=binaries, addresses=addresses)
    log = stack_folder(stack.home) / f"{name}.log"
    port = int(addresses[name].rpartition(":")[2])
    on_progress(f"Starting {name} {version} on port {port}.")
    pid, started_s = spawn(launch.arguments, launch.environment, log)
    return ServiceProcess(
        name=name,
        pid=pid,
        started_s=started_s,
        port=port,
        url=f"http://{addresses[name]}",
        version=version,
        log=log,
    )


def _wait_until_ready(stack: Stack, timeout_s: float, on_progress: Progress) -> None:
    deadline = time.monotonic() + timeout_s
    waiting = list(stack.processes)
    with _local_session() as session:
        while waiting:
            for process in list(waiting):
                if find_running(process) is None:
                    raise StackError(_with_log(f"{process.name} ended while it was starting", process))
                if _is_ready(session, process):
                    waiting.remove(process)
                    on_progress(f"{process.name} is ready at {process.url}.")
                elif time.monotonic() >= deadline:
                    raise StackError(
                        _with_log(f"{process.name} was not ready after {timeout_s:g} s", process)
                    )
            if waiting:
                time.sleep(_PROBE_INTERVAL_S)


def _with_log(sentence: str, process: ServiceProcess) -> str:
    tail = log_tail(process.log)
    return (
        f"{sentence}; its log {process.log} ends with:\n{tail}" if tail else f"{sentence}; it logged nothing."
    )


def _local_session() -> requests.Session:
    session = requests.Session()
    session.trust_env = False  # a proxy cannot reach this machine's own loopback
    return session


def _is_ready(session: requests.Session, process: ServiceProcess) -> bool:
    try:
        return session.get(process.url + READY_PATHS[process.name], timeout=1.0).ok
    except requests.RequestException:
        return False
