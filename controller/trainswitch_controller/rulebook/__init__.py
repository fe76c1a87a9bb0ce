"""Rules that people write, compiled to what Prometheus and the controller read; and what is said about rules.

Everything behind ``trainswitch rules``: `compile_file` for a user's rule file, `lint` and
`explain` for rule files of Prometheus, whoever wrote them.
"""

from trainswitch_controller.rulebook.cases import case_documents
from trainswitch_controller.rulebook.compiler import (
    CompiledRule,
    compile_file,
    policy_entries,
    rule_document,
)
from trainswitch_controller.rulebook.explain import Explanation, explain
from trainswitch_controller.rulebook.grammar import ConditionError, parse
from trainswitch_controller.rulebook.lint import Finding, against_policy, lint
from trainswitch_controller.rulebook.rule_files import PrometheusRule, expand, read_rule_file
from trainswitch_controller.rulebook.rules import Rule, is_rule_file

__all__ = [
    "CompiledRule",
    "ConditionError",
    "Explanation",
    "Finding",
    "PrometheusRule",
    "Rule",
    "against_policy",
    "case_documents",
    "compile_file",
    "expand",
    "explain",
    "is_rule_file",
    "lint",
    "parse",
    "policy_entries",
    "read_rule_file",
    "rule_document",
]
