"""``stack.json``: which processes make up the local stack, and where they listen."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from trainswitch.files import write_atomically
from trainswitch_controller.cli.errors import StackError
from trainswitch_controller.cli.tokens import operator_token_path

ServiceName = Literal["prometheus", "alertmanager", "controller", "grafana"]


@dataclass(frozen=True, config=ConfigDict(extra="ignore"))
class ServiceProcess:
    """One process of the stack."""

    name: ServiceName
    pid: int
    started_s: float
    """Seconds from the machine's boot to the process's start: with `pid`, its identity."""
    port: int
    url: str
    version: str
    log: Path


@dataclass(frozen=True, config=ConfigDict(extra="ignore"))
class Stack:
    """The local stack of one home folder."""

    home: Path
    policy: Path
    """What the controller was started with."""
    processes: tuple[ServiceProcess, ...]

    @property
    def prometheus(self) -> str:
        """Address of Prometheus."""
        return self.process("prometheus").url

    @property
    def alertmanager(self) -> str:
        """Address of Alertmanager."""
        return self.process("alertmanager").url

    @property
    def controller(self) -> str:
        """Address of the controller."""
        return self.process("controller").url

    @property
    def grafana(self) -> str | None:
        """Address of Grafana; None where it is not installed."""
        found = self.find("grafana")
        return found.url if found is not None else None

    @property
    def operator_token_file(self) -> Path:
        """File with the token that the controller's API takes."""
        return operator_token_path(self.home)

    def find(self, name: ServiceName) -> ServiceProcess | None:
        """Return the process of a service, or None where none was started."""
        return next((process for process in self.processes if process.name == name), None)

    def process(self, name: ServiceName) -> ServiceProcess:
        """Return the process of a service.

        Raises:
            StackError: none was started.
        """
        found = self.find(name)
        if found is None:
            raise StackError(f"the stack in {self.home} has no {name}: run 'trainswitch stack up'.")
        return found


_STACK = TypeAdapter(Stack)


def stack_folder(home: Path) -> Path:
    """Return the folder for the stack's configurations, data and logs."""
    return home / "stack"


def record_path(home: Path) -> Path:
    """Return the path of the home's ``stack.json``."""
    return stack_folder(home) / "stack.json"


def load_stack(home: Path) -> Stack | None:
    """Return the stack that was started in `home`, dead or alive; None where none was, or it was stopped.

    Raises:
        StackError: ``stack.json`` cannot be read.
    """
    path = record_path(home)
    try:
        return _STACK.validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StackError(f"cannot read {path}: {error.strerror or error}; check its permissions.") from error
    except ValidationError:
        raise StackError(
            f"{path} is not a record of a stack: end the processes that the logs beside it belong to, "
            "and remove the file."
        ) from None


def save_stack(stack: Stack) -> None:
    """Write `stack` to its home's ``stack.json``; without processes, remove the file.

    Raises:
        StackError: the folder cannot be written.
    """
    path = record_path(stack.home)
    try:
        if stack.processes:
            write_atomically(path, _STACK.dump_json(stack, indent=1))
        else:
            path.unlink(missing_ok=True)
    except OSError as error:
        raise StackError(f"cannot write {path}: {error.strerror or error}; make it writable.") from error
