"""Welch's t-test as prometheus/rules/validation.yml computes it, against SciPy, by a real promtool."""

from __future__ import annotations

import dataclasses
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import yaml
from scipy import stats

from trainswitch.statistics.evaluations import moments

RULES = Path(__file__).resolve().parents[2] / "prometheus" / "rules" / "validation.yml"
SAMPLES = 120
HIGHEST_P = 0.0105
"""What validation.yml promises from 2 degrees of freedom on, instead of 0.01."""


@dataclasses.dataclass(frozen=True)
class Case:
    """Two windows of one run's loss, and what SciPy says of them."""

    run: str
    reference: tuple[float, ...]
    recent: tuple[float, ...]

    @property
    def t(self) -> float:
        """Welch's statistic of the recent window being worse, that is higher."""
        return float(stats.ttest_ind(self.recent, self.reference, equal_var=False).statistic)

    @property
    def degrees_of_freedom(self) -> float:
        """After Welch and Satterthwaite."""
        return float(stats.ttest_ind(self.recent, self.reference, equal_var=False).df)

    @property
    def p(self) -> float:
        """One-sided."""
        return float(stats.t.sf(self.t, self.degrees_of_freedom))

    @property
    def ratio(self) -> float:
        """By which part of the reference the recent window is worse."""
        return moments(self.recent).mean / moments(self.reference).mean - 1.0

    def series(self) -> dict[str, float]:
        """What the exporter shows of the windows."""
        labels = f"run='{self.run}', rank='0'"
        found = {
            f"train_baseline_ready{{{labels}}}": 1.0,
            f"train_eval_direction{{{labels}, metric='val_loss'}}": -1.0,
        }
        for window, values in (("reference", self.reference), ("recent", self.recent)):
            for stat, value in vars(moments(values)).items():
                name = f"train_eval_window{{{labels}, metric='val_loss', window='{window}', stat='{stat}'}}"
                found[name] = float(value)
        return found


def cases() -> list[Case]:
    """Windows of 3 to 20 values whose p lies on both sides of 0.01, with unequal variances and counts."""
    random = np.random.default_rng(4)
    found = []
    for number in range(SAMPLES):
        counts = random.integers(3, 8), random.integers(3, 21)
        spreads = 10.0 ** random.uniform(-2.0, -0.5, 2)
        shift = random.uniform(0.0, 3.0) * max(spreads)
        recent = tuple(1.0 + shift + spreads[0] * random.normal(size=counts[0]))
        reference = tuple(1.0 + spreads[1] * random.normal(size=counts[1]))
        found.append(Case(f"r{number}", reference, recent))
    return found


def check(folder: Path, series: dict[str, float], expr: str, value: int) -> None:
    """Assert that `expr` is `value` where the series of `cases` and `series` have been there for 10 s."""
    document = {
        "rule_files": [str(RULES)],
        "evaluation_interval": "5s",
        "tests": [
            {
                "interval": "5s",
                "input_series": [{"series": name, "values": repr(one)} for name, one in series.items()],
                "promql_expr_test": [
                    {"expr": expr, "eval_time": "10s", "exp_samples": [{"value": value}]},
                ],
            }
        ],
    }
    path = folder / "welch.test.yml"
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    promtool = shutil.which("promtool")
    assert promtool is not None, "promtool is not on PATH: install it with `apt install prometheus`."
    done = subprocess.run([promtool, "test", "rules", path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


def check_close(folder: Path, record: str, wanted: dict[str, float], tolerance: float) -> None:
    """Assert that `record` is within a relative `tolerance` of what is wanted of each run."""
    series = {name: value for case in cases() for name, value in case.series().items()}
    series |= {f"wanted{{run='{run}'}}": value for run, value in wanted.items()}
    ratio = f"abs({record} / on (run) group_left () wanted - 1)"
    check(folder, series, f"count({ratio} < {tolerance})", len(wanted))


def test_t_is_scipys(tmp_path: Path) -> None:
    """Statistic and degrees of freedom from the exported moments are those of scipy.stats.ttest_ind."""
    found = cases()
    check_close(tmp_path, "rank:train_eval_worsening:t", {case.run: case.t for case in found}, 1e-4)
    degrees = {case.run: case.degrees_of_freedom for case in found}
    check_close(tmp_path, "rank:train_eval_worsening:degrees_of_freedom", degrees, 1e-4)


@pytest.mark.parametrize(("lowest", "tolerance"), [(2.0, 0.022), (3.0, 0.004)])
def test_the_limit_is_scipys_quantile(tmp_path: Path, lowest: float, tolerance: float) -> None:
    """The series is as near to the quantile at 0.99 as validation.yml says it is."""
    degrees = {case.run: case.degrees_of_freedom for case in cases()}
    assert min(degrees.values()) < 2.2
    limits = {run: float(stats.t.isf(0.01, df)) for run, df in degrees.items() if df >= lowest}
    check_close(tmp_path, "rank:train_eval_worsening:t_limit", limits, tolerance)


def test_the_alert_fires_exactly_where_scipys_test_is_significant(tmp_path: Path) -> None:
    """On both sides of the limit, but for what lies between p = 0.01 and what the series promises."""
    clear = [case for case in cases() if not 0.01 < case.p < HIGHEST_P]
    fires = [case for case in clear if case.p <= 0.01 and case.ratio > 0.02]
    assert SAMPLES / 5 < len(fires) < SAMPLES * 4 / 5
    series = {name: value for case in clear for name, value in case.series().items()}
    series |= {f"wanted{{run='{case.run}'}}": 1.0 for case in fires}
    alerts = "ALERTS{alertname='TrainValidationDegraded', alertstate='firing'}"
    check(tmp_path, series, f"count({alerts})", len(fires))
    check(tmp_path, series, f"count({alerts} and on (run) wanted)", len(fires))
