"""A replay as one HTML page that needs nothing else: a summary, and a plot of each run."""

from trainswitch_controller.replay.page.document import render
from trainswitch_controller.replay.page.signals import TRACES

__all__ = ["TRACES", "render"]
