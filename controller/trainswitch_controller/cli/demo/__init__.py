"""``trainswitch demo``: a training run is poisoned, seen, paused and saved, on the real parts."""

from __future__ import annotations

from trainswitch_controller.cli.demo.command import register

__all__ = ["register"]
