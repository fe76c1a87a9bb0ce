"""The grammar of conditions: what is written, in English and Chinese, and where it is not understood."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainswitch_controller.rulebook.condition import (
    Amount,
    Change,
    Clause,
    Comparison,
    Condition,
    NonFinite,
    Persistence,
    Relative,
    Sigmas,
)
from trainswitch_controller.rulebook.grammar import ConditionError, parse
from trainswitch_controller.rulebook.vocabulary import UNITS, WORDS


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("max > 1e5持续3次", "max > 100000 for 3 times"),
        ("max > 1e5 for 3 times", "max > 100000 for 3 times"),
        ("持续3次 max > 1e5", "max > 100000 for 3 times"),
        ("max 连续3次超过1e5", "max > 100000 for 3 times"),
        ("下降>5%持续2epoch", "drops > 5% for 2 epochs"),
        ("drops > 5% for 2 epochs", "drops > 5% for 2 epochs"),
        ("连续2个epoch下降超过5%", "drops > 5% for 2 epochs"),
        ("连续2轮下降超过5%", "drops > 5% for 2 epochs"),
        ("较最佳下降5%", "drops > 5% from best"),
        ("falls by more than 0.05", "drops > 0.05"),
        ("增长了至少20%", "rises >= 20%"),
        ("10分钟内上升>10%", "rises > 10% within 10 minutes"),
        ("rises > 10% in 10 minutes", "rises > 10% within 10 minutes"),
        ("> 3x median", "> 3x median"),
        ("> 3 times the median for 5 steps", "> 3x median for 5 steps"),
        ("超过均值3倍", "> 3x mean"),
        ("超过均值的3倍", "> 3x mean"),
        ("大于3倍均值", "> 3x mean"),
        ("低于基线的80%持续10分钟", "< 0.8x baseline for 10 minutes"),
        ("less than 80% of the baseline for 10 min", "< 0.8x baseline for 10 minutes"),
        ("高于6个标准差", "> 6 sigma"),
        ("above 6σ", "> 6 sigma"),
        ("出现NaN", "is nan"),
        ("为NaN", "is nan"),
        ("is not finite for 3 times", "is nan for 3 times"),
        ("最大值大于等于1万", "max >= 10000"),
        ("不超过5", "<= 5"),
        ("＞１０％", "> 10%"),
        ("为0持续100步", "== 0 for 100 steps"),
        ("is 0 for 100 steps", "== 0 for 100 steps"),
        ("p95 > 2s for 10m", "p95 > 2s for 10 minutes"),
        ("at least 1,000 for at least 3 consecutive steps", ">= 1000 for 3 steps"),
        ("> 5 for 3 steps in a row", "> 5 for 3 steps"),
        ("loss > 5 and grad_norm max > 100 for 3 steps", "loss > 5 and grad_norm max > 100 for 3 steps"),
        ("损失超过5且梯度范数最大值 > 100", "损失 > 5 and 梯度范数 max > 100"),
    ],
)
def test_a_condition_means_the_same_in_either_language(written: str, expected: str) -> None:
    """Each way to write it is printed as the same English condition."""
    assert str(parse(written)) == expected


numbers = st.floats(allow_nan=False, allow_infinity=False, width=64).map(lambda value: value + 0.0)
factors = st.floats(min_value=0.01, max_value=1e6)
amounts = st.builds(Amount, numbers, st.sampled_from(["", *UNITS]))
references = st.sampled_from(["mean", "median", "baseline", "best"])
limits = st.one_of(amounts, st.builds(Relative, factors, references), st.builds(Sigmas, factors))
comparisons = st.builds(Comparison, st.sampled_from([">", ">=", "<", "<=", "=="]), limits)
changes = st.builds(
    Change, st.sampled_from(["falls", "rises"]), st.sampled_from([">", ">="]), amounts, references
) | st.builds(
    Change,
    st.sampled_from(["falls", "rises"]),
    st.sampled_from([">", ">="]),
    amounts,
    within=st.integers(1, 86_400).map(float),
)
persistences = st.builds(
    Persistence,
    st.integers(1, 10_000).map(float),
    st.sampled_from(["times", "steps", "epochs", "evaluations"]),
) | st.builds(Persistence, st.integers(1, 24).map(float), st.sampled_from(["seconds", "minutes", "hours"]))
clauses = st.builds(
    Clause,
    comparisons | changes | st.builds(NonFinite),
    metric=st.none() | st.sampled_from(["loss", "grad_norm", "val_accuracy", "train_loss", "损失", "学习率"]),
    statistic=st.none() | st.sampled_from(["max", "min", "mean", "median", "value", "p50", "p99"]),
    persistence=st.none() | persistences,
)


@settings(deadline=None)  # the first example builds the parser
@given(st.builds(Condition, st.lists(clauses, min_size=1, max_size=4).map(tuple)))
def test_what_a_condition_prints_is_read_as_the_same_condition(condition: Condition) -> None:
    """Nothing is lost between meaning and words."""
    if len(str(condition)) <= 500:
        assert parse(str(condition)) == condition


_WORDS = [word for words in WORDS.values() for word in words]


@given(
    st.text(max_size=60) | st.lists(st.sampled_from([*_WORDS, "3", "1e5", "loss"]), max_size=12).map(" ".join)
)
def test_any_text_is_understood_or_refused_with_a_place(text: str) -> None:
    """No text brings the parser down; a refusal names a column of the text and is a sentence."""
    refused = None
    try:
        parse(text)
    except ConditionError as error:
        refused = error
    if refused is not None:
        assert 0 <= refused.column <= len(text)
        assert refused.message.endswith((".", "?"))
        assert "\n" not in refused.message


@pytest.mark.parametrize(
    ("written", "column", "said"),
    [
        ("max > 1e5 fro 3 times", 10, "did you mean 'for'?"),
        ("max > 1e5持绪3次", 9, "did you mean '持续'?"),
        ("下将>5%", 0, "did you mean '下降'?"),
        ("max > abc", 6, "a number"),
        ("max >", 5, "ends too soon"),
        ("> 5 or < 3", 4, "one rule for each alternative"),
        ("> 5 for 0 times", 8, "a whole one from 1"),
        ("> 5 for 2.5 steps", 8, "a whole one from 1"),
        ("> 5 for 1000 hours", 8, "between a second and a day"),
        ("max > 1e999", 6, "too large"),
        ("drops 5% from best within 5 minutes", 26, "leave one of them out"),
        ("> 5GB of baseline", 9, "a factor such as '3x'"),
    ],
)
def test_what_is_not_understood_is_named_with_its_place_and_the_way_out(
    written: str, column: int, said: str
) -> None:
    """The column is that of the word, and the sentence says what would be right."""
    with pytest.raises(ConditionError, match=r"\w") as caught:
        parse(written)
    assert caught.value.column == column
    assert said in caught.value.message


def test_a_word_is_not_part_of_a_longer_name() -> None:
    """`max_memory` is a name, and `persistent` no `p…`."""
    (clause,) = parse("max_memory > 5").clauses
    assert (clause.metric, clause.statistic) == ("max_memory", None)
