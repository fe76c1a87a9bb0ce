"""Ports, binaries, processes and the record: the parts that the local stack is made of."""

from __future__ import annotations

import dataclasses
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from tests.cli.support import until

from trainswitch_controller.cli.errors import MissingBinary, PortInUse, StackError
from trainswitch_controller.cli.stack import ServiceProcess, Stack, binaries, load_stack, stop_stack
from trainswitch_controller.cli.stack.binaries import binary_version, find_binaries
from trainswitch_controller.cli.stack.ports import PortWish, choose_ports
from trainswitch_controller.cli.stack.processes import find_running, log_tail, spawn, terminate
from trainswitch_controller.cli.stack.record import record_path, save_stack


@contextmanager
def listening() -> Iterator[int]:
    """Listen on a port of the loopback and yield it."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield int(listener.getsockname()[1])


def program(folder: Path, name: str, text: str) -> Path:
    """Write an executable shell script."""
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def sleeper(folder: Path, code: str = "import time; time.sleep(600)") -> ServiceProcess:
    """Start a Python process that stands for a service."""
    log = folder / "service.log"
    pid, started_s = spawn([sys.executable, "-u", "-c", code], dict(os.environ), log)
    return ServiceProcess(
        name="prometheus",
        pid=pid,
        started_s=started_s,
        port=1,
        url="http://127.0.0.1:1",
        version="1",
        log=log,
    )


def test_a_free_wish_is_granted(free_port: int) -> None:
    """The wished port is taken where nobody listens on it."""
    assert choose_ports({"prometheus": PortWish(free_port, fixed=False)}) == {"prometheus": free_port}


def test_a_taken_default_gives_another_port() -> None:
    """A default is a wish: where it is taken, any free port does."""
    with listening() as taken:
        port = choose_ports({"prometheus": PortWish(taken, fixed=False)})["prometheus"]
    assert port not in {0, taken}


def test_a_taken_fixed_port_is_refused() -> None:
    """A port that was insisted on is named, with the way out."""
    with (
        listening() as taken,
        pytest.raises(PortInUse, match=f"^port {taken} for grafana is taken: leave it out.$"),
    ):
        choose_ports({"grafana": PortWish(taken, fixed=True, way_out="leave it out.")})


def test_a_fixed_port_that_is_just_being_left_is_waited_for() -> None:
    """The sockets of a process that was killed close a moment after it looks dead."""
    holder = socket.create_server(("127.0.0.1", 0))
    port = int(holder.getsockname()[1])
    leaving = threading.Timer(0.1, holder.close)
    leaving.start()
    assert choose_ports({"prometheus": PortWish(port, fixed=True)}) == {"prometheus": port}
    leaving.join()


def test_no_two_services_get_the_same_port(free_port: int) -> None:
    """Where two wish for one port, who insists gets it."""
    wishes = {"prometheus": PortWish(free_port, fixed=False), "grafana": PortWish(free_port, fixed=True)}
    ports = choose_ports(wishes)  # type: ignore[arg-type]
    assert ports["grafana"] == free_port
    assert ports["prometheus"] != free_port


def test_the_distribution_s_name_of_a_binary_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Debian calls Alertmanager prometheus-alertmanager; a folder that was named comes before PATH."""
    monkeypatch.setenv("PATH", str(tmp_path / "nowhere"))
    expected = {
        "prometheus": program(tmp_path, "prometheus", ""),
        "alertmanager": program(tmp_path, "prometheus-alertmanager", ""),
    }
    found = find_binaries([tmp_path])
    assert {name: found[name] for name in ("prometheus", "alertmanager")} == expected


def test_a_missing_binary_is_named_with_the_command_that_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One sentence names what is missing, where it was looked for, and both ways out."""
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(binaries, "EXTRA_FOLDERS", dict.fromkeys(binaries.EXTRA_FOLDERS, ("/nowhere",)))
    program(tmp_path, "prometheus", "")
    with pytest.raises(MissingBinary) as caught:
        find_binaries([tmp_path])
    message = str(caught.value)
    assert message.startswith("Alertmanager (alertmanager or prometheus-alertmanager) is not installed")
    assert "'sudo apt-get install prometheus-alertmanager'" in message
    assert "--bin-dir" in message


def test_the_version_of_a_binary_is_its_own_word(tmp_path: Path) -> None:
    """Prometheus and Grafana word it differently; a program that says nothing has an unknown version."""
    assert (
        binary_version(program(tmp_path, "a", "echo 'prometheus, version 2.42.0+ds (branch: x)'"))
        == "2.42.0+ds"
    )
    assert binary_version(program(tmp_path, "b", "echo 'grafana version 11.1.0'")) == "11.1.0"
    assert binary_version(program(tmp_path, "c", "exit 1")) == "unknown"


def test_a_spawned_process_has_a_session_and_a_log_of_its_own(tmp_path: Path) -> None:
    """Ctrl-C and a closed terminal do not reach it, and what it says is in its log."""
    service = sleeper(tmp_path, "print('here I am'); import time; time.sleep(600)")
    try:
        until(lambda: log_tail(service.log) == "here I am", 20.0)
        assert os.getsid(service.pid) == service.pid
    finally:
        terminate([service], 5.0)
    assert find_running(service) is None


def test_the_log_of_the_start_before_is_kept(tmp_path: Path) -> None:
    """Why a process died can still be read after it was started again."""
    (tmp_path / "service.log").write_text("the end\n")
    terminate([sleeper(tmp_path)], 5.0)
    assert (tmp_path / "service.log.1").read_text() == "the end\n"


def test_a_process_that_does_not_listen_is_killed(tmp_path: Path) -> None:
    """After the grace comes SIGKILL."""
    ignore = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf'); time.sleep(600)"
    )
    service = sleeper(tmp_path, ignore)
    until(lambda: log_tail(service.log) == "deaf", 20.0)
    terminate([service], 0.1)
    assert not psutil.pid_exists(service.pid)


def test_a_pid_that_was_given_away_is_left_alone(home: Path, tmp_path: Path) -> None:
    """``stack down`` with an old record ends no process that merely has the same pid."""
    (home / "stack").mkdir(parents=True)
    stranger = sleeper(tmp_path)
    try:
        stale = dataclasses.replace(stranger, started_s=stranger.started_s - 3600.0)
        save_stack(Stack(home, home / "policy.yml", (stale,)))
        assert stop_stack(home) == ()
        assert find_running(stranger) is not None
        assert load_stack(home) is None
    finally:
        terminate([stranger], 5.0)


def test_a_dead_process_that_nobody_waited_for_counts_as_ended(tmp_path: Path) -> None:
    """A zombie is not running."""
    service = sleeper(tmp_path)
    os.kill(service.pid, signal.SIGKILL)
    until(lambda: psutil.Process(service.pid).status() == psutil.STATUS_ZOMBIE, 5.0)
    assert find_running(service) is None
    os.waitpid(service.pid, 0)


def test_a_program_that_cannot_start_is_named(tmp_path: Path) -> None:
    """A file that is no program gives a sentence."""
    (tmp_path / "prometheus").write_text("text")
    with pytest.raises(StackError, match=r"cannot start .*prometheus: Permission denied"):
        spawn([str(tmp_path / "prometheus")], {}, tmp_path / "log")


def test_a_record_comes_back_as_it_was_written(home: Path, tmp_path: Path) -> None:
    """stack.json holds everything; addresses are where callers look for them."""
    (home / "stack").mkdir(parents=True)
    service = ServiceProcess(
        name="controller",
        pid=1,
        started_s=2.5,
        port=3,
        url="http://127.0.0.1:3",
        version="4",
        log=tmp_path / "5",
    )
    stack = Stack(home, home / "policy.yml", (service,))
    save_stack(stack)
    assert load_stack(home) == stack
    assert stack.controller == "http://127.0.0.1:3"
    assert stack.grafana is None
    assert stack.operator_token_file == home / "tokens" / "operator"
    with pytest.raises(StackError, match="has no prometheus: run 'trainswitch stack up'"):
        _ = stack.prometheus


@pytest.mark.parametrize("content", [b"", b"{", b'{"home": 1}', b"[]"])
def test_a_record_that_cannot_be_read_is_named(home: Path, content: bytes) -> None:
    """A torn or foreign stack.json is reported and not overwritten."""
    path = record_path(home)
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    with pytest.raises(StackError, match=r"stack.json is not a record of a stack"):
        stop_stack(home)
    assert path.read_bytes() == content
