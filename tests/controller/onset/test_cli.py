"""What an operator sees of an incident."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from trainswitch_controller.cli.application import run


def test_incidents_and_episodes_name_the_suspect(
    home: Any, tools: Any, make_server: Callable[..., Any], onset: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """As a table for people, and whole for programs; a run without one says so."""
    story = onset.told(train_layer_grad_norm={"layer=blocks.3": onset.jump(30, 12.0, 1.0)})
    server = make_server(prometheus_url=onset.url)
    server.fire(tools.alert(run=story.run, starts_at=story.end))
    tools.wait_for(lambda: server.metric("onset_total", result="found") == 1)
    asked = [f"--controller=http://127.0.0.1:{server.port}", f"--token-file={home.folder / 'operator.token'}"]
    assert run(["incidents", story.run, *asked]) == 0
    shown = capsys.readouterr().out
    assert "layer: blocks.3" in shown
    assert "its gradient norm rose to 12, from 1" in shown
    assert run(["incidents", story.run, "--json", *asked]) == 0
    [incident] = json.loads(capsys.readouterr().out)["incidents"]
    assert incident["suspects"][0]["name"] == "blocks.3"
    assert run(["episodes", story.run, *asked]) == 0
    assert "layer: blocks.3" in capsys.readouterr().out
    assert run(["incidents", "another", *asked]) == 0
    assert "No onset was found" in capsys.readouterr().out
