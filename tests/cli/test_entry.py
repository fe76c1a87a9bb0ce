"""The command without a controller: entry points, help, and arguments that cannot be meant."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cli.support import Run

from trainswitch_controller.cli import actions
from trainswitch_controller.cli.application import build

COMMANDS = [
    ("status",),
    ("commands",),
    ("episodes",),
    ("incidents",),
    ("approve",),
    ("reject",),
    ("policy", "check"),
    ("policy", "explain"),
    ("pause",),
    ("resume",),
    ("snapshot",),
    ("reduce-lr",),
    ("set-lr",),
    ("clip-gradients",),
    ("skip-batches",),
    ("set-sampling",),
    ("act",),
    ("rollback",),
    ("stop",),
    ("serve",),
    ("demo",),
    ("metrics",),
    ("openapi",),
    ("replay",),
    ("tune",),
    ("rules", "compile"),
    ("rules", "check"),
    ("rules", "test"),
    ("rules", "explain"),
    ("stack", "up"),
    ("stack", "down"),
    ("stack", "status"),
]


def python(code: str) -> subprocess.CompletedProcess[str]:
    """Run `code` in a fresh interpreter."""
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )


def test_the_package_can_be_run_as_a_module() -> None:
    """``python -m trainswitch_controller`` is the same command."""
    module = [sys.executable, "-m", "trainswitch_controller", "--version"]
    answer = subprocess.run(module, capture_output=True, text=True, timeout=60, check=True)
    assert answer.stdout.startswith("trainswitch ")


@pytest.mark.parametrize("package", ["typer", "rich", "requests"])
def test_a_base_install_says_which_extra_is_missing(package: str) -> None:
    """Without the extra's packages, one sentence gives the command that installs them; exit code 2."""
    answer = python(
        f"import sys; sys.modules[{package!r}] = None\n"
        "from trainswitch_controller.cli import main; sys.exit(main(['status']))"
    )
    assert answer.returncode == 2
    assert answer.stderr.count("\n") == 1
    assert f"needs {package!r}" in answer.stderr
    assert "pip install 'trainswitch[controller]'" in answer.stderr


def test_commands_other_than_serve_start_without_the_web_framework() -> None:
    """The quick commands do not load FastAPI, SQLAlchemy or torch."""
    answer = python(
        "import sys\n"
        "from trainswitch_controller.cli import main; main(['--version'])\n"
        "print(sorted({'fastapi', 'sqlalchemy', 'torch'} & set(sys.modules)))"
    )
    assert answer.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_has_help_with_an_example(run: Run, command: tuple[str, ...]) -> None:
    """``--help`` ends with a line that can be copied."""
    finished = run(*command, "--help")
    assert finished.code == 0
    text = " ".join(finished.out.split())
    assert re.search(rf"Examples?: trainswitch {' '.join(command)}", text), text


def test_the_list_of_commands_above_is_complete() -> None:
    """A new command joins the test of the help."""
    app = build()
    names: list[tuple[str, ...]] = [
        (command.name or command.callback.__name__,)
        for command in app.registered_commands
        if command.callback
    ]
    for group in app.registered_groups:
        assert group.typer_instance is not None
        for command in group.typer_instance.registered_commands:
            assert command.callback is not None
            names.append((str(group.name), command.name or command.callback.__name__))
    assert sorted(names) == sorted(COMMANDS)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("pause",), "RUN"),
        (("pause", "gpt2", "--timeout", "soon"), "--timeout"),
        (("pause", "gpt2", "--force"), "--force"),
        (("pause", "../gpt2"), "run name '../gpt2' is not allowed"),
        (("reduce-lr", "gpt2", "--factor", "2"), "parameter 'factor'"),
        (("rollback", "gpt2", "--step", "-1"), "parameter 'step'"),
        (("rollback", "gpt2", "--lr-factor", "0"), "parameter 'lr_factor'"),
        (("status", "a/b"), "run name 'a/b' is not allowed"),
        (("commands", "--limit", "0"), "--limit"),
        (("status", "--controller", "localhost:9095"), "write it like http://127.0.0.1:9095"),
        (("status", "--controller", "http://[1"), "write it like http://127.0.0.1:9095"),
        (("stack", "up", "--prometheus-port", "70000"), "--prometheus-port"),
        (("dance",), "dance"),
    ],
)
def test_an_argument_that_cannot_be_meant_ends_with_2(
    run: Run, arguments: tuple[str, ...], named: str
) -> None:
    """Usage errors name the argument on standard error and end with 2; nothing was sent anywhere."""
    finished = run(*arguments)
    assert finished.code == 2
    assert finished.out == ""
    assert named in finished.err
    assert "Traceback" not in finished.err


def test_options_that_were_not_given_stay_out_of_the_parameters() -> None:
    """The default of an action is the action's own, not the command line's."""
    assert actions.rollback() == ("rollback", {})
    assert actions.rollback(step=0) == ("rollback", {"step": 0})
    assert actions.pause(snapshot=True) == ("pause_and_snapshot", {})


def test_status_without_controller_or_folder_ends_with_3(run: Run, home: Path, free_port: int) -> None:
    """Nothing to ask and nothing to read: the sentence says how to start a controller."""
    token = home / "tokens" / "operator"
    token.parent.mkdir(parents=True)
    token.write_text("secret")
    finished = run("status", "--controller", f"http://127.0.0.1:{free_port}")
    assert finished.code == 3
    assert "is not reachable (connection refused)" in finished.err
    assert "trainswitch stack up" in finished.err


@pytest.mark.parametrize(
    ("content", "named"), [(None, "No such file"), (b"", "is empty"), (b"\xff", "not ASCII")]
)
def test_an_unusable_token_ends_with_3(run: Run, tmp_path: Path, content: bytes | None, named: str) -> None:
    """The token's file is named, and the option that names another."""
    path = tmp_path / "token"
    if content is not None:
        path.write_bytes(content)
    finished = run("pause", "gpt2", "--token-file", str(path))
    assert finished.code == 3
    assert str(path) in finished.err
    assert named in finished.err
    assert "--token-file" in finished.err
