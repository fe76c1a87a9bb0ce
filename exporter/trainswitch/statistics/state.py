"""All statistics over the steps of one run, fed together, and their state as one thing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainswitch.config import StatisticsConfig
from trainswitch.statistics.control_chart import ControlChart, Deviation
from trainswitch.statistics.evaluations import Evaluations
from trainswitch.statistics.excess import Lasting, LossExcess, LossRise
from trainswitch.statistics.schedule import LearningRates
from trainswitch.statistics.season import Season
from trainswitch.statistics.streaks import EvaluationStreaks, Side, StepStreaks, Unit
from trainswitch.statistics.windows import Baseline, GradientWindow, TrendWindow

STATE_VERSION = 2
"""Of `Statistics.state_dict`; raised whenever an older reader would misunderstand it."""

STREAK_SIGNALS = ("loss", "grad_norm")
"""Values of each step that have streaks."""


class Statistics:
    """What PromQL cannot compute about a run, because it takes every step in its order.

    The state is JSON: dicts, lists, numbers, strings and None. However long the run, it is bounded: with the
    default settings some 5,000 numbers during the warm-up and 2,000 afterwards, besides 48 for each
    evaluation metric.
    """

    def __init__(self, config: StatisticsConfig) -> None:
        """Begin with nothing known."""
        self._config = config
        self.evaluations = Evaluations(
            config.recent_evaluations, config.reference_evaluations, config.evaluation_better
        )
        self._begin()

    def _begin(self) -> None:
        config = self._config
        self._chart = ControlChart(config.loss_span_steps, config.chart_lambda)
        self._season = Season(config.season_steps) if config.season_steps is not None else None
        self._step = 0
        """The last one; a smaller one that comes unannounced is another run's."""
        self.excess = LossExcess()
        self.rise = LossRise()
        self.gradients = GradientWindow(config.gradient_window_steps)
        self.gradients_lasting = Lasting()
        """Of their ratios to the trailing median; not in the state."""
        self.trend = TrendWindow(config.trend_window_steps)
        self.baseline = Baseline(config.effective_warmup_steps)
        self.streaks = {signal: StepStreaks() for signal in STREAK_SIGNALS}
        """Not in the state: what a resumed run does first does not follow what it did last."""
        self._evaluation_streaks: dict[str, EvaluationStreaks] = {}
        self._epoch: float | None = None
        self.rates = LearningRates()
        """Not in the state, see there."""

    def advance(self, step: int) -> bool:
        """Note that the run has come to `step`.

        Returns:
            Whether the step counter went back without a word of `rewind`: that is another run in the same
            process, or one that was begun again, so everything was forgotten and a new warm-up begins.
        """
        restarted = step < self._step
        if restarted:
            self._begin()
            self.evaluations.clear()
        self._step = step
        return restarted

    def rewind(self, step: int) -> None:
        """Note that the run goes on from `step`, by a rollback or a resumption: the statistics go on, too."""
        self._step = step
        self.rates.forget()
        for streaks in self.streaks.values():
            streaks.interrupt()
        self.interrupt()

    def interrupt(self) -> None:
        """Note that the next step does not follow the last one: what lasted so far has ended."""
        for lasting in (self.excess.lasting, self.rise.lasting, self.gradients_lasting):
            lasting.interrupt()

    def begin_trial(self) -> None:
        """Note that the run was changed to mend it: what evaluations did before is not held against it."""
        self._evaluation_streaks.clear()

    def take_streaks(self, time: float, epoch: float | None, **values: float | None) -> None:
        """Take what a step says about streaks.

        Args:
            time: when it ended, in seconds of any clock.
            epoch: what the loop calls the epoch, None where it says nothing.
            values: signal of `STREAK_SIGNALS` → value, None where the step has none.
        """
        if epoch is not None:
            self._epoch = epoch
        for signal, value in values.items():
            if value is not None:
                self.streaks[signal].update(value, time)

    def take_evaluation(self, metric: str, value: float) -> None:
        """Take an evaluation of the epoch that the last step belongs to.

        Raises:
            ValueError: `metric` is one more than there may be.
        """
        self.evaluations.update(metric, value)
        self._streaks_of(metric).update(value, self._epoch)

    def evaluation_streaks(self, metric: str) -> dict[tuple[Side, Unit, int], float]:
        """Return the levels of a metric's newest streaks, see `EvaluationStreaks.levels`."""
        return self._streaks_of(metric).levels()

    def _streaks_of(self, metric: str) -> EvaluationStreaks:
        return self._evaluation_streaks.setdefault(metric, EvaluationStreaks())

    def take_loss(self, step: int, loss: float) -> Deviation | None:
        """Take a step's finite loss, and return where it lies on the control chart, if there is one yet.

        With a season, the chart is that of the loss less the offset of the step's phase. It starts anew when
        the season's table is complete, because its values then lie at another level.
        """
        self.trend.update(loss)
        self.evaluations.take_loss(loss)
        if self._season is None:
            return self._chart.update(loss)
        if self._season.update(step, loss):
            self._chart.clear()
            self.excess.clear()
        return self._chart.update(loss - self._season.offset(step))

    def take_loss_excess(self, step: int, loss: float) -> tuple[float, float | None] | None:
        """Take the same loss after `take_loss`, and return its excess, see `LossExcess.update`."""
        return self.excess.update(loss - self._season.offset(step) if self._season is not None else loss)

    def take_grad_norm(self, norm: float) -> tuple[float, float | None] | None:
        """Take a step's finite gradient norm; None while there are too few to judge it by.

        Returns:
            The norm over its trailing median, and which of these ratios three of the last five steps reach,
            in the order of `EXCESS_STEPS`; the latter is None while there are not three.
        """
        ratio = self.gradients.update(norm)
        return None if ratio is None else (ratio, self.gradients_lasting.update(ratio))

    def loss_limits(self) -> tuple[float, float] | None:
        """Return centre line and sigma of the loss at the present step; None while there are none."""
        if not self._chart.ready:
            return None
        offset = self._season.offset(self._step) if self._season is not None else 0.0
        return self._chart.center + offset, self._chart.sigma

    def state_dict(self) -> dict[str, Any]:
        """Return the state of everything."""
        return {
            "version": STATE_VERSION,
            "step": self._step,
            "chart": self._chart.state_dict(),
            "season": self._season.state_dict() if self._season is not None else None,
            "excess": self.excess.state_dict(),
            "rise": self.rise.state_dict(),
            "gradients": self.gradients.state_dict(),
            "trend": self.trend.state_dict(),
            "baseline": self.baseline.state_dict(),
            "evaluations": self.evaluations.state_dict(),
            "evaluation_streaks": {
                metric: streaks.state_dict() for metric, streaks in self._evaluation_streaks.items()
            },
        }

    @classmethod
    def from_state(cls, config: StatisticsConfig, state: Any) -> Statistics:
        """Return statistics that go on from what `state_dict` returned, perhaps under other settings.

        Raises:
            ValueError: the state is of another version, or is not a state at all.
        """
        version = state.get("version") if isinstance(state, Mapping) else None
        if version != STATE_VERSION:
            raise ValueError(f"statistics of version {version!r} cannot be read, only {STATE_VERSION}")
        statistics = cls(config)
        try:
            statistics._load(state)
        except (KeyError, TypeError, AttributeError, ValueError, OverflowError) as error:
            raise ValueError(f"the state of the statistics is damaged: {error!r}") from error
        return statistics

    def _load(self, state: Mapping[str, Any]) -> None:
        self._step = int(state["step"])
        self.rise.load_state_dict(state["rise"])
        self.gradients.load_state_dict(state["gradients"])
        self.trend.load_state_dict(state["trend"])
        self.baseline.load_state_dict(state["baseline"])
        self.evaluations.load_state_dict(state["evaluations"])
        for metric, kept in state.get("evaluation_streaks", {}).items():
            self._streaks_of(metric).load_state_dict(kept)
        season = state["season"]
        if self._season is not None and season is not None:
            self._season.load_state_dict(season)
        # The chart of a loss less its season's offsets says nothing about the loss itself, nor the reverse.
        if (self._season is not None and self._season.ready) == (season is not None and season["ready"]):
            self._chart.load_state_dict(state["chart"])
            self.excess.load_state_dict(state["excess"])
