"""Limits that are worked out from recorded runs, and measured by replaying them."""

from trainswitch_controller.tune.labels import Trouble, read_labels
from trainswitch_controller.tune.levels import SIGNALS, Signal
from trainswitch_controller.tune.proposal import Candidate, Proposal
from trainswitch_controller.tune.relevant import relevant_rules
from trainswitch_controller.tune.search import Budget, tune
from trainswitch_controller.tune.writing import yaml_of

__all__ = [
    "SIGNALS",
    "Budget",
    "Candidate",
    "Proposal",
    "Signal",
    "Trouble",
    "read_labels",
    "relevant_rules",
    "tune",
    "yaml_of",
]
