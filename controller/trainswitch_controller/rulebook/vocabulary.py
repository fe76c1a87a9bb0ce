"""The words of a condition: each token of the grammar with what may be written for it, English and Chinese.

The grammar and the errors' suggestions are made of this table.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from typing import Final

WORDS: Final[dict[str, tuple[str, ...]]] = {
    "AND": ("and", "&&", "并且", "而且", "同时", "且", "与", "和"),
    # statistics
    "MAX": ("max", "maximum", "largest", "highest", "peak", "最大值", "最大", "峰值", "最高"),
    "MIN": ("min", "minimum", "smallest", "lowest", "最小值", "最小", "最低"),
    "MEAN": ("mean", "average", "avg", "平均值", "平均", "均值"),
    "MEDIAN": ("median", "中位数", "中值"),
    "VALUE": ("value", "current", "数值", "当前值"),
    # references; mean and median are among them, too
    "BASELINE": ("baseline", "基线", "基准"),
    "BEST": ("best", "最佳", "最优", "最好"),
    "SIGMA": ("sigma", "sigmas", "σ", "standard deviations", "stddev", "个标准差", "标准差"),
    # comparisons
    "AT_LEAST": (">=", "≥", "at least", "不小于", "不低于", "大于等于", "大于或等于", "至少", "达到"),
    "AT_MOST": ("<=", "≤", "at most", "不大于", "不超过", "不高于", "小于等于", "小于或等于", "至多"),
    "ABOVE": (
        ">",
        "above",
        "over",
        "exceeds",
        "exceed",
        "greater than",
        "more than",
        "higher than",
        "larger than",
        "超过",
        "超出",
        "大于",
        "高于",
        "多于",
    ),
    "BELOW": (
        "<",
        "below",
        "under",
        "less than",
        "lower than",
        "smaller than",
        "fewer than",
        "低于",
        "小于",
        "少于",
        "不足",
    ),
    "EQUALS": ("==", "=", "equals", "equal to", "等于"),
    # changes
    "FALLS": (
        "drops",
        "drop",
        "dropped",
        "falls",
        "fall",
        "fell",
        "decreases",
        "decrease",
        "declines",
        "decline",
        "下降",
        "降低",
        "减少",
        "下跌",
        "跌",
    ),
    "RISES": (
        "rises",
        "rise",
        "rose",
        "increases",
        "increase",
        "grows",
        "grow",
        "climbs",
        "climb",
        "上升",
        "升高",
        "增长",
        "增加",
        "上涨",
    ),
    "BY": ("by", "了"),
    "FROM": ("from", "versus", "vs", "compared to", "compared with", "相比", "较", "比", "相对"),
    "WITHIN": ("within", "in", "在"),
    "INSIDE": ("以内", "之内", "内"),
    # values that are no numbers
    "NONFINITE": (
        "nan",
        "inf",
        "infinite",
        "non-finite",
        "nonfinite",
        "not finite",
        "not a number",
        "非有限",
        "非数",
        "无穷",
    ),
    "IS": ("is", "becomes", "goes", "turns", "出现", "变为", "变成", "为", "是"),
    # persistence
    "FOR": (
        "for",
        "lasting",
        "persists for",
        "持续",
        "连续",
        "维持",
        "保持",
    ),
    "IN_A_ROW": ("in a row", "consecutive", "straight", "以上"),
    "PIECE": ("个",),
    "TIMES": ("times", "time", "次"),
    "STEPS": ("steps", "step", "iterations", "iteration", "iters", "iter", "步"),
    "EPOCHS": ("epochs", "epoch", "轮", "周期"),
    "EVALUATIONS": ("evaluations", "evaluation", "evals", "eval", "次评估", "次验证", "次评测"),
    "SECONDS": ("seconds", "second", "secs", "sec", "s", "秒钟", "秒"),
    "MINUTES": ("minutes", "minute", "mins", "min", "m", "分钟", "分"),
    "HOURS": ("hours", "hour", "h", "个小时", "小时"),
    "FACTOR": ("x", "×", "fold", "倍"),
    # small words that change nothing
    "THE": ("the", "of", "its", "的", "于", "其"),
}

SCALES: Final[dict[str, float]] = {"万": 1e4, "亿": 1e8, "千": 1e3, "百万": 1e6}
"""What a Chinese numeral multiplies the digits before it with."""

UNITS: Final[dict[str, tuple[str, float]]] = {
    "%": ("ratio", 0.01),
    "KB": ("bytes", 1e3),
    "MB": ("bytes", 1e6),
    "GB": ("bytes", 1e9),
    "TB": ("bytes", 1e12),
    "KiB": ("bytes", 2.0**10),
    "MiB": ("bytes", 2.0**20),
    "GiB": ("bytes", 2.0**30),
    "TiB": ("bytes", 2.0**40),
    "ms": ("seconds", 1e-3),
    "s": ("seconds", 1.0),
    "秒": ("seconds", 1.0),
    "min": ("seconds", 60.0),
    "分钟": ("seconds", 60.0),
    "h": ("seconds", 3600.0),
    "小时": ("seconds", 3600.0),
    "W": ("watts", 1.0),
    "瓦": ("watts", 1.0),
    "°C": ("celsius", 1.0),
    "℃": ("celsius", 1.0),
    "度": ("celsius", 1.0),
}
"""Unit of a limit → what it measures, and how many base units it is."""

_FULL_WIDTH = str.maketrans("＞＜＝％，。；：（）＊＋－．０１２３４５６７８９", "><=%,.;:()*+-.0123456789")


def ascii_forms(text: str) -> str:
    """Return `text` with full-width signs and digits as ASCII; as long as before, so that places stay."""
    return text.translate(_FULL_WIDTH)


def pattern_of(words: Iterable[str]) -> str:
    """Return a regular expression for any of `words`, unless a longer one of the table stands there."""
    return "|".join(_pattern(word) for word in sorted(words, key=len, reverse=True))


def _pattern(word: str) -> str:
    escaped = r"\s+".join(re.escape(part) for part in word.split())
    if word[0].isalpha() and word[-1].isascii() and word[-1].isalnum():
        return f"{escaped}(?![A-Za-z0-9_])"
    longer = {
        one[len(word) :] for words in WORDS.values() for one in words if one.startswith(word) and one != word
    }
    return escaped + "".join(f"(?!{re.escape(rest)})" for rest in sorted(longer))


def nearest(word: str, known: Iterable[str]) -> str | None:
    """Return the known word that `word`, or the beginning of a Chinese one, is most like; None if none is."""
    by_lower = {one.lower(): one for one in known}
    if word[0] < "\u4e00":
        found = difflib.get_close_matches(word.lower(), by_lower, n=1)
        return by_lower[found[0]] if found else None
    # Chinese runs on without spaces, and one sign of two is already half of a word.
    tries = [
        (difflib.SequenceMatcher(None, word[:length], one).ratio(), one[0] == word[0], one)
        for length in (2, 3, 4)
        for one in by_lower
        if one[0] >= "\u4e00" and len(one) > 1
    ]
    ratio, _, best = max(tries, default=(0.0, False, ""))
    return best if ratio >= 0.5 else None
