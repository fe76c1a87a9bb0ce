"""Prometheus, Alertmanager, the controller and Grafana as processes of this machine."""

from trainswitch_controller.cli.stack.lifecycle import probe_stack, start_stack, stop_stack
from trainswitch_controller.cli.stack.record import ServiceName, ServiceProcess, Stack, load_stack

__all__ = [
    "ServiceName",
    "ServiceProcess",
    "Stack",
    "load_stack",
    "probe_stack",
    "start_stack",
    "stop_stack",
]
