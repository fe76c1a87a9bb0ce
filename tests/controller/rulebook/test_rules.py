"""A user's rule file: every fault with its place, in JSON and YAML."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainswitch_controller.errors import RuleFileError
from trainswitch_controller.rulebook import compile_file
from trainswitch_controller.rulebook.document import read

ISSUE = """{"rules": [
  {"metric": "gradient_norm", "condition": "max > 1e5持续3次",
   "action": "pause_and_snapshot", "severity": "critical"},
  {"metric": "val_accuracy", "condition": "下降>5%持续2epoch",
   "action": "reduce_lr", "params": {"factor": 0.5}}]}
"""


def faults(path: Path, text: str) -> list[str]:
    """Return what is wrong with a rule file, without its path."""
    path.write_text(text, encoding="utf-8")
    with pytest.raises(RuleFileError) as caught:
        compile_file(path)
    return [fault.removeprefix(f"{path}:") for fault in caught.value.faults]


def test_json_and_yaml_of_either_language_are_the_same_rules(tmp_path: Path) -> None:
    """The file as it was asked for, and its English form in YAML."""
    (tmp_path / "a.json").write_text(ISSUE, encoding="utf-8")
    (tmp_path / "a.yml").write_text(
        "rules:\n"
        "  - metric: gradient_norm\n"
        "    condition: max > 1e5 for 3 times\n"
        "    action: pause_and_snapshot\n"
        "    severity: critical\n"
        "  - metric: val_accuracy\n"
        "    condition: drops > 5% for 2 epochs\n"
        "    action: reduce_lr\n"
        "    params: {factor: 0.5}\n",
        encoding="utf-8",
    )
    first, second = (compile_file(tmp_path / name) for name in ("a.json", "a.yml"))
    assert [one.expr for one in first] == [one.expr for one in second]
    assert [one.rule.severity for one in first] == ["critical", "critical"]
    assert [one.rule.params for one in first] == [{}, {"factor": 0.5}]


def test_json_may_be_indented_with_tabs_and_hold_any_sign(tmp_path: Path) -> None:
    """YAML would refuse the tabs, and take the two halves of a sign beyond the basic plane for two."""
    path = tmp_path / "a.json"
    path.write_text(
        '{\n\t"rules": [\n\t\t{"metric": "loss", "condition": "> 5",\n'
        '\t\t\t"description": "\\ud83d\\ude80 \\/"}\n\t]\n}',
        encoding="utf-8",
    )
    (one,) = compile_file(path)
    assert one.rule.description == "🚀 /"
    assert one.rule.place.line == 3


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        (
            '"metric": "gradient_nrom", "condition": "> 5"',
            "2:13: metric 'gradient_nrom' is exported by nobody: did you mean 'gradient_norm'?",
        ),
        ('"metric": "bleu", "condition": "> 5"', "'eval:bleu'"),
        (
            '"metric": "loss", "condition": "> 5 fro 3 steps"',
            "2:39: 'fro' is not understood here: did you mean 'for'?",
        ),
        (
            '"metric": "loss", "condition": "> 5 and grad_nrm > 3"',
            "2:43: metric 'grad_nrm' is exported by nobody: did you mean 'grad_norm'?",
        ),
        (
            '"metric": "loss", "condition": "> 5", "action": "puase"',
            "2:51: action 'puase' does not exist: did you mean 'pause'?",
        ),
        (
            '"metric": "loss", "condition": "> 5", "action": "reduce_lr", "params": {"factor": 1.5}',
            "2:85: parameter 'factor' of action 'reduce_lr' is not valid",
        ),
        (
            '"metric": "loss", "condition": "> 5", "action": "reduce_lr", "params": {"facto": 0.5}',
            "parameter 'facto' of action 'reduce_lr' is not valid",
        ),
        (
            '"metric": "loss", "condition": "> 5", "conditon": "> 5"',
            "2:41: key 'conditon' is not known: did you mean 'condition'?",
        ),
        ('"metric": "loss", "condition": "> 5", "severity": "fatal"', "severity 'fatal' is not known"),
        (
            '"metric": "loss", "condition": "> 5", "severity": "warning", "action": "pause"',
            "a warning causes no intervention",
        ),
        ('"metric": "loss", "condition": "> 5", "params": {}', "params without an action have no effect"),
        (
            '"metric": "loss", "condition": "> 5", "cooldown": "10m"',
            "cooldown without an action has no effect",
        ),
        (
            '"metric": "loss", "condition": "> 5", "action": "pause", "cooldown": "10x"',
            "write a duration as a number",
        ),
        ('"metric": "loss", "condition": "> 5", "name": "a b"', "is not allowed"),
        ('"metric": "loss", "condition": "> 5", "phases": ["a b"]', "is no name of a phase"),
        ('"metric": "loss", "condition": 5', "2:34: condition = 5 is no text."),
        ('"metric": "loss"', "has no 'condition'"),
        # well-formed, and without a meaning for this metric
        ('"metric": "loss", "condition": "> 5 for 7 steps"', "2:35: 7 in a row are not counted"),
        ('"metric": "loss", "condition": "== 5"', "hardly ever equals a number"),
        ('"metric": "loss", "condition": "> 5GB"', "is a number without a unit"),
        ('"metric": "loss", "condition": "> 2x best"', "has no best to compare it with"),
        ('"metric": "loss", "condition": "> 5 for 2 evaluations"', "is no evaluation metric"),
        ('"metric": "loss", "condition": "p99 > 5"', "there is no p99 of loss"),
        ('"metric": "val_accuracy", "condition": "rises > 5%"', "cannot pass its own best: write 'drops'"),
        ('"metric": "val_loss", "condition": "drops > 5%"', "cannot pass its own best: write 'rises'"),
        ('"metric": "val_loss", "condition": "> 5 for 3 steps"', "count evaluations or epochs"),
        ('"metric": "gpu_utilization", "condition": "< 80"', "write '80%'"),
        ('"metric": "learning_rate", "condition": "drops > 50%"', "within 10 minutes"),
        ('"metric": "learning_rate", "condition": "is nan"', "are not counted"),
        (
            '"metric": "loss", "condition": "> 5 for 5 minutes and grad_norm > 3 for 3 steps"',
            "last differently long",
        ),
    ],
)
def test_a_fault_is_named_with_its_place_and_the_way_out(tmp_path: Path, rule: str, said: str) -> None:
    """Line, column, the word, and the nearest valid one."""
    (fault,) = faults(tmp_path / "a.json", '{"rules": [\n {' + rule + "}\n]}")
    assert said in fault
    assert fault.startswith("2:")
    assert fault.endswith((".", "?", ").", ")"))


def test_all_faults_are_named_at_once_in_their_order(tmp_path: Path) -> None:
    """Nobody should have to compile a file once for each of its faults."""
    text = (
        "rules:\n"
        "  - {metric: lss, condition: '> 5 fro 3'}\n"
        "  - {metric: loss, condition: '> 5 for 7 steps'}\n"
        "  - {metric: loss, condition: '> 5', sverity: critical}\n"
    )
    found = faults(tmp_path / "a.yml", text)
    assert [fault.partition(":")[0] for fault in found] == ["2", "2", "3", "4"]


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.json", '{"rules": [}', "1:12: is not valid JSON"),
        ("a.yml", "rules: [", "is not valid YAML"),
        ("a.yml", "", "is empty"),
        ("a.yml", "rules: []", "a list of one rule or more"),
        ("a.yml", "ruls: []", "did you mean 'rules'?"),
        ("a.yml", "- 1", "a mapping with the key 'rules'"),
        ("a.yml", "rules:\n  - {metric: loss, metric: loss, condition: '> 5'}", "is given twice"),
        ("a.yml", "rules: &a [*a]", "is an alias"),
        ("a.yml", "rules:\n  - 5", "a rule is a mapping"),
    ],
)
def test_a_file_that_is_no_rule_file_is_refused(tmp_path: Path, name: str, text: str, said: str) -> None:
    """With a sentence, whatever it is instead."""
    assert said in "\n".join(faults(tmp_path / name, text))


def test_two_rules_of_one_name_and_severity_are_refused_and_of_two_severities_are_not(tmp_path: Path) -> None:
    """Critical and warning share a name, so that one mutes the other."""
    path = tmp_path / "a.yml"
    twice = "rules:\n  - {metric: loss, condition: '> 5'}\n  - {metric: loss, condition: '> 6'}\n"
    assert "in line 2 already" in faults(path, twice)[0]
    path.write_text(twice.replace("'> 6'", "'> 6', severity: critical"), encoding="utf-8")
    assert {one.rule.name for one in compile_file(path)} == {"CustomLossHigh"}


def test_a_name_that_a_committed_alert_has_is_refused(tmp_path: Path) -> None:
    """Its policy entry and its silences would be the other alert's."""
    path = tmp_path / "a.yml"
    path.write_text("rules: [{metric: loss, condition: '> 5', name: TrainHung}]", encoding="utf-8")
    with pytest.raises(RuleFileError, match="exists already"):
        compile_file(path, taken={"TrainHung"})


@settings(deadline=None)  # the first example builds the parser
@given(st.text(max_size=200))
def test_any_text_is_read_or_refused(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    """No file brings the reader down."""
    path = tmp_path_factory.getbasetemp() / "any.yml"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    with contextlib.suppress(RuleFileError):
        read(path)
    with contextlib.suppress(RuleFileError):
        compile_file(path)
