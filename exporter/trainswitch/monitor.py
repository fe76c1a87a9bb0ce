"""Monitor: the object a training loop holds. It reads like the life of a run."""

from __future__ import annotations

import atexit
import contextlib
import logging
import math
import os
import socket
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from time import perf_counter
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from trainswitch.config import MonitorConfig, load_config, with_guard, with_isolation
from trainswitch.errors import AgreementLost, ConfigError
from trainswitch.intervention.actions import Interventions
from trainswitch.intervention.agreement import Agreement, FileAgreement, GroupAgreement
from trainswitch.intervention.channel import ControlChannel
from trainswitch.intervention.clipping import GradientClip
from trainswitch.intervention.commands import (
    ACTIONS,
    RESULTS,
    CommandOutcome,
    RunState,
    check_run_name,
)
from trainswitch.intervention.control_file import run_folder
from trainswitch.intervention.data_feed import DataFeed
from trainswitch.intervention.file_group import FileGroup
from trainswitch.intervention.keeper import CheckpointKeeper
from trainswitch.intervention.rank_group import RankGroup
from trainswitch.intervention.rate_actions import RateActions
from trainswitch.intervention.run_actions import RunParts
from trainswitch.intervention.sampling_action import sampling_deed
from trainswitch.intervention.state_actions import StateActions
from trainswitch.metrics.catalogue import SKIP_REASONS
from trainswitch.opening import (
    further_state,
    layers_of,
    open_endpoint,
    open_probes,
    open_ring,
    open_training,
    parameter_count,
    rank_in_environment,
    scale_of,
    watch_collectives,
)
from trainswitch.probes.readout import HostValues, Readout, Scalar, to_float
from trainswitch.probes.sampling import changed_sampling, check_sampling
from trainswitch.recording.records import LABEL_BYTES, Kind
from trainswitch.recording.steps import Step, StepRecorder

if TYPE_CHECKING:
    import torch
    from pydantic import BaseModel

    from trainswitch.intervention.guard import Guard
    from trainswitch.intervention.training_state import HasStateDict

logger = logging.getLogger("trainswitch")

Batch = TypeVar("Batch")

_PAUSE_TICK_SECONDS = 0.5
_CONTROL_READ_SECONDS = 1.0
_new_tuple = tuple.__new__


class Monitor:
    """Watches one run: records its steps, serves its metrics, carries out its commands.

    Trouble of the monitor's own (a port, a full disk, a missing folder) is logged and counted, and never
    ends or holds up the training. Only a wrong setting raises, and only at the start.
    """

    config: MonitorConfig
    """The settings that hold."""

    def __new__(
        cls, *, config: str | os.PathLike[str] | Mapping[str, Any] | MonitorConfig | None = None, **_: Any
    ) -> Monitor:
        """Make a `MonitorOff` where the configuration switches the monitor off; its `__init__` follows."""
        kind = cls
        loaded = load_config(config)
        if not loaded.enabled:
            from trainswitch.monitor_off import MonitorOff

            kind = MonitorOff
        monitor = super().__new__(kind)
        monitor.config = loaded
        return monitor

    def __init__(
        self,
        *,
        run: str,
        model: torch.nn.Module | None = None,
        optimizer: torch.optim.Optimizer | None = None,
        scheduler: HasStateDict | None = None,
        state: Mapping[str, HasStateDict] | None = None,
        data: HasStateDict | None = None,
        config: str | os.PathLike[str] | Mapping[str, Any] | MonitorConfig | None = None,  # noqa: ARG002
        step: int = 0,
        scaler: torch.amp.GradScaler | None = None,
        isolate: bool | None = None,
        guard: str | None = None,
    ) -> None:
        """Begin to watch.

        Args:
            run: name of the run: 1 to 128 letters, digits, ``.``, ``_`` or ``-``.
            model: saved and rolled back.
            optimizer: saved and rolled back; gradient norms and learning rates are read from it.
            scheduler: saved and rolled back.
            state: further named objects with ``state_dict``/``load_state_dict`` to save and roll back.
            data: such an object, the loader itself perhaps, that holds the position in the data; saved,
                loaded by `restore`, and by a rollback only where it is to rewind the data.
            config: path to a YAML file, a dict, or a `MonitorConfig`.
            step: number of steps the run has behind it, when it is resumed.
            scaler: of automatic mixed precision; loss scale and skipped steps are read from it, and it is
                saved and rolled back with the rest.
            isolate: whether a process of its own serves the metrics; None leaves it to the configuration.
            guard: ``auto``, ``on`` or ``off``: whether the optimizer's steps on gradients that are not finite
                are skipped; None leaves it to the configuration.

        Raises:
            ConfigError: a setting, or the run's name, is not valid.
            ServerError: the endpoint's token or certificate cannot be used.
        """
        self.run = check_run_name(run)
        self.config = with_guard(with_isolation(self.config, isolate), guard)  # loaded in __new__
        self.rank, self.world_size, self._local_rank = rank_in_environment()
        self._node = socket.gethostname()
        self._closed = False
        self._sampling = self.config.sampling
        self._first_step = True
        self._reported: set[str] = set()
        self._feed = DataFeed(lambda: self.should_stop)
        self._control_read_due = 0.0
        self._micro: list[Scalar] = []
        self._owner = os.getpid()
        parts = {"model": model, "optimizer": optimizer}
        self._attached = [name for name, part in parts.items() if part is not None]
        check_sampling(self.config.sampling, self.config.sampling.model_fields_set, self._attached)
        layers = layers_of(model, self.config.layers.max_series)
        self._ring = open_ring(
            self.config,
            run=self.run,
            rank=self.rank,
            node=self._node,
            world_size=self.world_size,
            local_rank=self._local_rank,
            framework="torch" if self._attached else "none",
            parameters=parameter_count(self.config, model),
            layers=layers,
            step=step,
        )
        self._recorder = StepRecorder(self._ring, self._on_nonfinite)
        self._readout = Readout(self._publish, width=5)
        self._learning_rate = scale_of(optimizer)
        self._probes = open_probes(
            self.config,
            model,
            optimizer,
            layers=layers,
            scaler=scaler,
            rank=self.rank,
            step=step,
            append=self._ring.append,
        )
        self._guard = self._open_guard(model, optimizer, scaler)
        self._training = open_training(
            model,
            optimizer,
            scheduler,
            further_state(scaler, data, state),
            rank=self.rank,
            world_size=self.world_size,
        )
        self._keeper: CheckpointKeeper | None = None
        if self._training is not None:
            self._keeper = CheckpointKeeper(
                self.run,
                self.config.checkpoint,
                record=self._record,
                report=self._report,
                judge=self._training.nonfinite,
                rank=self.rank,
            )
        self._store = self._keeper.store if self._keeper is not None else None
        self._channel = ControlChannel(
            self.config.control,
            self.run,
            node=self._node,
            step=step,
            checkpoints=self._store.entries if self._store is not None else tuple,
            on_error=lambda reason: self._record(Kind.CONTROL_ERROR, label=reason),
            on_read=self._on_poll,
        )
        states = StateActions(
            self._training,
            self._store,
            follows=self.rank > 0,
            holds_data=data is not None,
            meta=self._checkpoint_meta,
        )
        self._rates = RateActions(self._learning_rate)
        self._clip = GradientClip(self._probes)
        run_parts = RunParts(
            states=states,
            rates=self._rates,
            clip=self._clip,
            feed=self._feed,
            sampling=sampling_deed(
                lambda intervals: changed_sampling(self._sampling, intervals, self._attached),
                lambda intervals: self.set_sampling(**intervals),
            ),
        )
        self._interventions = Interventions(
            self._channel, run_parts, on_answer=self._on_answer, on_restored=self._on_restored
        )
        self._interventions.step = step
        self._ranks = RankGroup(self.run, self.rank, self.world_size) if self.world_size > 1 else None
        self._agreement: Agreement | None = None
        if self._keeper is not None:
            self._keeper.on_saved = states.saved
        self._endpoint = open_endpoint(self._ring, self._local_rank, on_restart=self._on_sidecar_restart)
        self._start()

    # ── beginning ─────────────────────────────────────────────────────────────────────────────────────

    def _open_guard(
        self,
        model: torch.nn.Module | None,
        optimizer: torch.optim.Optimizer | None,
        scaler: torch.amp.GradScaler | None,
    ) -> Guard | None:
        if optimizer is None or self._probes is None:
            if self.config.guard == "on":
                raise ConfigError("guard: on has no effect without an optimizer: pass it to attach().")
            return None
        from trainswitch.intervention.guard import open_guard

        return open_guard(
            self.config.guard,
            optimizer,
            model,
            scaler,
            run=self.run,
            check=self._probes.check,
            say=lambda sentence: logger.log(
                logging.INFO if self.rank > 0 else logging.WARNING, "%s", sentence
            ),
            on_lost=self._on_guard_lost,
        )

    def _on_guard_lost(self, why: str) -> None:
        """Hear that the guard is off."""
        self._record(Kind.GUARD, (0.0,))
        self._report("guard", f"the guard is off from now on: {why}")

    def _tell_guard(self) -> None:
        if "optimizer" in self._attached:
            self._record(Kind.GUARD, (float(self.guarded),))

    def _on_sidecar_restart(self) -> None:
        """Say again what a new sidecar does not find in the ring when it was said long ago."""
        keeper = self._keeper  # the training thread may let it go
        if keeper is not None:
            keeper.tell_again()
        self._tell_guard()
        self._tell_actions()
        said = None
        while said != self._channel.state:  # the training thread may change it in between
            said = self._channel.state
            self._record(Kind.STATE, label=said)

    def _agree(self) -> Agreement:
        """Begin to carry out commands with the other ranks; called at the first boundary, or by `restore`."""
        if self._ranks is not None and self._ranks.reachable():
            return GroupAgreement(self._interventions, self._ranks, on_lost=self._on_agreement_lost)
        folder = run_folder(self.config.control.folder, self.run)
        files = FileGroup(folder, self.rank, self.world_size, lambda: self._interventions.step)
        return FileAgreement(self._interventions, files, on_lost=self._on_agreement_lost)

    def _on_agreement_lost(self, error: AgreementLost) -> None:
        """Hear that commands cannot be carried out by all ranks (any more)."""
        self._record(Kind.CONTROL_ERROR, label="ranks")
        self._report("ranks", f"commands are refused from now on: {error}")
        if self.rank > 0 or (self._training is not None and self._training.spread):
            self._keeper = None  # what this rank saves is of no use without the others

    def _start(self) -> None:
        self._endpoint.start()
        if self.rank == 0:
            self._channel.open()
        self._tell_guard()
        self._collectives = watch_collectives(
            self.world_size, self._ring.append, lambda: self._interventions.step
        )
        atexit.register(self._at_exit)
        logger.info(
            "run %s is watched: %s, control folder %s", self.run, self.url, self.config.control.folder
        )
        self._mark = perf_counter()

    @property
    def url(self) -> str | None:
        """Address of this rank's ``/metrics``; None where no port could be had."""
        return self._endpoint.url

    @property
    def guarded(self) -> bool:
        """Whether the optimizer's steps on gradients that are not finite are skipped."""
        return self._guard is not None and self._guard.active

    # ── a step ────────────────────────────────────────────────────────────────────────────────────────

    def batches(self, loader: Iterable[Batch]) -> Iterator[Batch]:
        """Yield the batches of `loader`, timing the wait for each; ends early when a stop is commanded.

        A command may skip some, and a rollback may rewind `loader`, of which a new iterator is then taken.
        """
        return self._feed.batches(loader)

    def micro_step(self, loss: Scalar) -> None:
        """Take the loss of one micro-batch; the next `step` without a loss records their mean."""
        self._micro.append(loss.detach() if hasattr(loss, "detach") else loss)

    def clip_grad_norm_(
        self, max_norm: float, parameters: Iterable[torch.Tensor] | None = None
    ) -> torch.Tensor:
        """Clip the gradients as ``torch.nn.utils.clip_grad_norm_`` does, and record the norm they had.

        Args:
            max_norm: largest L2 norm to leave.
            parameters: whose gradients; by default all of the optimizer's.

        Returns:
            The norm before clipping, a 0-d tensor.

        Raises:
            ConfigError: no optimizer was attached.
        """
        if self._probes is None:
            raise ConfigError("clip_grad_norm_() needs the optimizer: pass it to attach().")
        return self._probes.clip(parameters, max_norm)

    def set_sampling(self, **intervals: int) -> None:
        """Change how often signals are measured, from the step after the next call of `step`.

        Args:
            intervals: steps by signal, as in the settings' section ``sampling``; 0 is never.

        Raises:
            ConfigError: a name is unknown, an interval is not a whole number from 0, or it has no effect.
        """
        self._sampling = changed_sampling(self._sampling, intervals, self._attached)
        if self._probes is not None:
            self._probes.sampling = self._sampling

    def register_action(
        self, name: str, handler: Callable[[Any], str | None], params: type[BaseModel] | None = None
    ) -> None:
        """Let commands and policies name an action of this run's own; on every rank, before the first step.

        Args:
            name: ``[a-z][a-z0-9_]{0,63}``, not a built-in one's.
            handler: carries it out, at a step boundary, in the training thread, on every rank; takes the
                parsed parameters, or None where the action has none. What it returns is the answer's
                sentence; what it raises makes the answer ``failed``, or ``refused`` for `ActionRefused`.
            params: pydantic model of the parameters, with ``extra="forbid"``; None for an action without any.

        Raises:
            ConfigError: the name is not allowed or taken, `params` is no such model, or steps were taken.
        """
        if not self._first_step:
            raise ConfigError(f"action {name!r} was registered after the first step: register it before.")
        self._interventions.custom.register(name, handler, params)
        self._tell_actions()

    def _tell_actions(self) -> None:
        for name in self._interventions.custom.names:
            self._record(Kind.ACTION, label=name)
        self._channel.actions = (*ACTIONS, *self._interventions.custom.names)

    def step(
        self,
        loss: Scalar = None,
        *,
        grad_norm: Scalar = None,
        samples: float = 0,
        tokens: float = 0,
        epoch: float | None = None,
        loss_scale: float | None = None,
        skipped: str | None = None,
    ) -> None:
        """Record one optimizer step, then carry out what was commanded; a pause is waited out in here.

        Args:
            loss: of the step, a number or a 0-d tensor on any device; None on a rank that has none.
            grad_norm: L2 norm before clipping; by default as measured in `clip_grad_norm_` or in the
                optimizer's pre-step hook. Of a DTensor, this rank's share is taken, without communication.
            samples: consumed by this step.
            tokens: consumed by this step.
            epoch: may be a fraction.
            loss_scale: of automatic mixed precision.
            skipped: why the update was skipped: ``loss_scale``, ``guard`` or ``user``.
        """
        if self._closed:
            self._report(
                "closed", "step() was called after the monitor was closed; the step is not recorded."
            )
            return
        start = perf_counter()
        interventions = self._interventions
        interventions.step += 1
        self._channel.step = interventions.step
        try:
            self._record_step(start, loss, grad_norm, samples, tokens, epoch, loss_scale, skipped)
        except Exception as error:  # noqa: BLE001 - the monitor's own trouble never ends a training
            self._report("step", f"a step was not recorded: {type(error).__name__}: {error}")
        self._clip.end_step()  # recorded or not, or the ranks would end it at different steps
        if self._keeper is not None:
            self._keeper.keep(interventions.step, interventions.capture)
        if self._ranks is not None:
            if self._agreement is None:
                self._agreement = self._agree()
            self._agreement.boundary(self._boundary)
        elif self._channel.pending:
            self._boundary()
        self._mark = perf_counter()

    def _record_step(
        self,
        start: float,
        loss: Scalar,
        grad_norm: Scalar,
        samples: float,
        tokens: float,
        epoch: float | None,
        loss_scale: float | None,
        skipped: str | None,
    ) -> None:
        if self._micro:
            micro, self._micro = self._micro, []
            if loss is None:
                loss = sum(micro) / len(micro)
        clipped_at = None
        scaling: tuple[Scalar, ...] = ()
        if self._probes is not None:
            measured, clipped_at = self._probes.take()
            scaling = self._probes.take_loss_scale()
            held = self._guard.take() if self._guard is not None else None
            if held is not None:
                scaling = (*(scaling or (None, None)), held)
            if grad_norm is None:
                grad_norm = measured
            elif hasattr(grad_norm, "to_local"):
                grad_norm = self._probes.share(grad_norm)
        if skipped is not None and skipped not in SKIP_REASONS:
            self._report(
                "skipped", f"skipped={skipped!r} is not a reason: use one of {', '.join(SKIP_REASONS)}."
            )
            skipped = "user"
        if self._first_step:
            self._first_step = False
            self._change_state("running")
            seconds = math.nan  # the first step compiles and warms up: its duration says nothing
        else:
            seconds = start - self._mark
        rates = self._learning_rate.effective() if self._learning_rate is not None else ()
        step: Step = _new_tuple(  # a third of the price of the named tuple's own constructor
            Step,
            (
                self._interventions.step,
                time.time(),
                seconds,
                self._feed.waited,
                samples,
                tokens,
                epoch,
                loss_scale,
                skipped or "",
                clipped_at,
                rates,
                perf_counter() - start,
            ),
        )
        self._feed.waited = 0.0
        if self._probes is not None:
            self._readout.submit(step, (loss, grad_norm, *scaling))
            self._probes.end_step(step.number)
        elif type(loss) is float and type(grad_norm) is float and self._readout.idle:
            self._recorder.write(step, loss, grad_norm)
        else:
            self._readout.submit(step, (loss, grad_norm))

    def _publish(self, step: Step, values: HostValues) -> None:
        if len(values) > 2:
            step = step.scaled(*values[2:])
        self._recorder.write(step, values[0], values[1])
        if self._probes is not None and step.clipped_at is None:
            self._probes.observe(values[1])

    def _on_nonfinite(self, step: int) -> None:
        if self._store is not None:
            self._store.trouble(step)

    # ── checkpoints and commands ──────────────────────────────────────────────────────────────────────

    def restore(self, step: int | None = None) -> int | None:
        """Go on from a checkpoint of this run; call it before the first step of what may be a resumed run.

        Everything attached, the random-number generators, the factor on the learning rate and the statistics
        are put back, so the first step is judged by the limits of the last. Checkpoints of later steps become
        suspect, since the run goes on without them.

        Args:
            step: of the checkpoint; by default the newest stable one or, where no stable one can be read, the
                newest on probation. Of several ranks, all call it alike and load the same one, or none.

        Returns:
            The step that the run goes on from; None where there is no checkpoint, so the run is a new one.

        Raises:
            ActionRefused: nothing was attached, or a run of several ranks has stepped already.
            CheckpointError: there are checkpoints, but not the one asked for, or none that can be loaded.
            AgreementLost: a rank is gone, or did not call it.
        """
        if self._ranks is not None:
            self._agreement = self._agreement or self._agree()
            restored = self._agreement.restore(step)
        else:
            found = self._interventions.prepare_restore(step, {})
            restored = self._interventions.restore(step).step if found is not None else None
        if restored is not None:
            self._first_step = True
        return restored

    def _on_restored(self, step: int, meta: Mapping[str, Any]) -> None:
        """Hear that a checkpoint was loaded."""
        self._readout.flush()  # earlier steps must not arrive later; loading has waited for them anyway
        self._record(Kind.RESTORED, step=step)
        self._channel.step = step
        self._micro = []
        self._feed.waited = 0.0
        if self.rank > 0 and self._keeper is not None:  # no control channel tells it on these ranks
            self._keeper.tell()
        statistics = meta.get("statistics")
        if statistics is None:
            return
        try:
            self._endpoint.load_statistics(statistics)
        except Exception as error:  # noqa: BLE001 - the run is restored already, and that is what counts
            self._report("statistics", f"the checkpoint's statistics are not used, these go on: {error}.")

    def _checkpoint_meta(self) -> dict[str, Any]:
        """Return what a checkpoint holds of the monitor's own; a rollback reads the statistics only."""
        return {
            "learning_rate_factor": self._rates.factor,
            "clipping": self._clip.state(),
            "answers": self._channel.answers(),
            "statistics": self._statistics_state(),
            "moment": self._agreement.moment if self._agreement is not None else "",
        }

    def _statistics_state(self) -> dict[str, Any] | None:
        try:
            return self._endpoint.statistics_state()
        except Exception as error:  # noqa: BLE001 - a checkpoint is worth having without them
            self._report("statistics", f"a checkpoint has no statistics: {type(error).__name__}: {error}")
            return None

    def _on_poll(self) -> None:
        """Hear from the control channel's thread, a few times a second."""
        now = time.monotonic()
        if now >= self._control_read_due:  # not at every look: a record costs more than it says
            self._control_read_due = now + _CONTROL_READ_SECONDS
            self._record(Kind.CONTROL_READ)
        keeper = self._keeper  # the training thread may let it go
        if keeper is not None:
            keeper.tell()

    def _boundary(self) -> None:
        """Carry commands out; while they leave the run paused, wait for more."""
        paused_since = perf_counter()
        was_paused = False
        commands = self._agreement or self._interventions
        while True:
            commands.carry_out()
            if not self._interventions.paused:
                break
            if not was_paused:
                was_paused = True
                self._change_state("paused")
            commands.wait(_PAUSE_TICK_SECONDS)
            now = perf_counter()
            self._record(Kind.PHASE, (now - paused_since,), label="paused")
            paused_since = now
        if (was_paused or self._channel.state == "paused") and not self._interventions.stopping:
            self._change_state("running")
        if self._interventions.stopping:
            self._change_state("stopped")

    def _on_answer(self, outcome: CommandOutcome, delay: float) -> None:
        known = outcome.action in ACTIONS or outcome.action in self._interventions.custom.names
        values = delay, float(RESULTS.index(outcome.result))
        self._record(Kind.COMMAND, values, label=outcome.action if known else "unknown")

    @property
    def should_stop(self) -> bool:
        """Whether the loop should end; for loops that do not go through `batches`."""
        return self._interventions.stopping

    @property
    def current_step(self) -> int:
        """Number of the last step; a rollback sets it back."""
        return self._interventions.step

    # ── evaluation ────────────────────────────────────────────────────────────────────────────────────

    @contextlib.contextmanager
    def evaluating(self) -> Iterator[None]:
        """Tell evaluation and training apart: within it, the run's state is ``evaluating``.

        What the step around it has taken so far, its wait for data too, remains the step's.
        """
        self._change_state("evaluating")
        start = perf_counter()
        taken, waited = start - self._mark, self._feed.waited
        self._mark = start
        try:
            yield
        finally:
            self._account("evaluate")
            self._mark -= taken
            self._feed.waited = waited
            self._change_state("running")

    def evaluate(self, **metrics: Scalar) -> None:
        """Record an evaluation's metrics by name, for example ``evaluate(val_loss=…, val_accuracy=…)``.

        The time since the last step, or since `evaluating` began, counts as evaluation.
        """
        self._account("evaluate")
        for name, value in metrics.items():
            if len(name.encode()) > LABEL_BYTES:
                self._report(
                    f"evaluate {name[:80]}",
                    f"evaluation metric {name[:80]!r} was not recorded: it has over {LABEL_BYTES} bytes.",
                )
                continue
            number = to_float(value)
            if number is not None:
                self._record(Kind.EVALUATION, (number,), label=name, step=self._interventions.step)

    # ── end ───────────────────────────────────────────────────────────────────────────────────────────

    def close(self, state: RunState | None = None) -> None:
        """End the monitoring; called by the context manager, and at the latest when the process exits.

        Args:
            state: how the run ended; by default ``finished``, or ``stopped`` after a stop command.
        """
        if self._closed or os.getpid() != self._owner:  # a forked child has no part in the run's end
            return
        self._closed = True
        atexit.unregister(self._at_exit)
        final: RunState = state or ("stopped" if self.should_stop else "finished")
        for part in (
            self._flush,
            self._end_agreement,
            self._end_checkpoints,
            lambda: self._change_state(final),
            lambda: self._channel.close(final) if self.rank == 0 else None,
            self._endpoint.close,
            self._detach,
        ):
            try:
                part()
            except Exception as error:  # noqa: BLE001 - each part must end, whatever the others do
                self._report(f"close {part}", f"ending the monitor: {type(error).__name__}: {error}")

    def _flush(self) -> None:
        self._readout.flush()
        if self._probes is not None:
            self._probes.flush()

    def _end_agreement(self) -> None:
        if self._agreement is not None:
            self._agreement.close()

    def _end_checkpoints(self) -> None:
        if self._store is not None:
            # Only what was begun is ended: what is still pending has no training left to act on.
            self._interventions.ready()
            self._store.close()
            self._interventions.ready()  # answers a snapshot that was still being written
            self._on_poll()

    def _detach(self) -> None:
        if self._collectives is not None:
            self._collectives.detach()
        if self._guard is not None:
            self._guard.detach()
        if self._probes is not None:
            self._probes.detach()
        if self._learning_rate is not None:
            self._learning_rate.detach()
        self._ring.close()

    def _at_exit(self) -> None:
        self.close("crashed" if getattr(sys, "last_value", None) is not None else None)

    def __enter__(self) -> Monitor:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close("crashed" if error is not None else None)

    # ── helpers ───────────────────────────────────────────────────────────────────────────────────────

    def _account(self, phase: str) -> None:
        """Count the time since the last mark as time spent in `phase`."""
        now = perf_counter()
        self._record(Kind.PHASE, (now - self._mark,), label=phase)
        self._mark = now
        self._feed.waited = 0.0  # a wait in that time is part of it

    def _change_state(self, state: RunState) -> None:
        self._record(Kind.STATE, label=state)
        self._channel.announce(state)

    def _record(self, kind: Kind, values: tuple[float, ...] = (), *, label: str = "", step: int = 0) -> None:
        self._ring.append(kind, step, values, label=label)

    def _report(self, what: str, sentence: str) -> None:
        """Log a trouble once; training goes on."""
        if what not in self._reported:
            self._reported.add(what)
            logger.warning("%s", sentence)


def attach(
    model: torch.nn.Module | None = None,
    optimizer: torch.optim.Optimizer | None = None,
    *,
    run: str,
    scheduler: HasStateDict | None = None,
    state: Mapping[str, HasStateDict] | None = None,
    data: HasStateDict | None = None,
    config: str | os.PathLike[str] | Mapping[str, Any] | MonitorConfig | None = None,
    step: int = 0,
    scaler: torch.amp.GradScaler | None = None,
    isolate: bool | None = None,
    guard: str | None = None,
) -> Monitor:
    """Watch a PyTorch training run; see `Monitor` for the arguments."""
    return Monitor(
        run=run,
        model=model,
        optimizer=optimizer,
        scheduler=scheduler,
        state=state,
        data=data,
        config=config,
        step=step,
        scaler=scaler,
        isolate=isolate,
        guard=guard,
    )
