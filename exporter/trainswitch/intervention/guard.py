"""The guard: an optimizer's step on gradients that are not finite does not happen."""

from __future__ import annotations

import enum
import inspect
import math
from collections.abc import Callable, Iterator
from typing import Any

import torch

from trainswitch.config import GuardSetting
from trainswitch.errors import ConfigError, GuardLost
from trainswitch.intervention.guard_ranks import GuardRanks
from trainswitch.probes.closures import after_closure


class Way(enum.Enum):
    """How a step is kept from happening."""

    NONE = "none"
    """It is not: the guard is off."""
    HOST = "host"
    """The host looks at the gradients and takes them away while the optimizer steps: without a gradient it
    touches neither a parameter nor its state."""
    DEVICE = "device"
    """The optimizer's fused kernels read ``found_inf`` on the device; the host never waits."""
    SCALER = "scaler"
    """A ``GradScaler`` does it."""


def choose(setting: GuardSetting, optimizer: torch.optim.Optimizer, scaler: Any = None) -> tuple[Way, str]:
    """Decide how `optimizer` is guarded.

    Args:
        setting: of the guard.
        optimizer: with its parameters where they will be trained.
        scaler: ``torch.amp.GradScaler`` that steps it.

    Returns:
        The way, and in one sentence why there is none or what it costs; empty where nothing need be said.

    Raises:
        ConfigError: the guard is to be on, and cannot be.
    """
    name = type(optimizer).__name__
    if setting == "off":
        return Way.NONE, ""
    if isinstance(optimizer, torch.optim.LBFGS):  # a step is a search through many gradients
        if setting == "on":
            raise ConfigError(f"guard: on cannot hold for {name}, which has no step to skip: leave it out.")
        return Way.NONE, f"the guard is off: {name} has no step that could be skipped."
    if scaler is not None and scaler.is_enabled():
        return Way.SCALER, ""
    if _in_host_memory(optimizer):
        return Way.HOST, ""
    if _skips_by_itself(optimizer):
        return Way.DEVICE, ""
    if setting == "on":
        return Way.HOST, (
            f"the guard waits for the device once a step, because {name} as constructed cannot skip a step "
            "there: fused=True can."
        )
    return Way.NONE, (
        f"the guard is off, so that nothing waits for the device: construct {name} with fused=True, where it "
        "has that, or set guard: on to wait once a step."
    )


def open_guard(
    setting: GuardSetting,
    optimizer: torch.optim.Optimizer,
    model: torch.nn.Module | None = None,
    scaler: Any = None,
    *,
    run: str,
    check: Callable[[], torch.Tensor | None],
    say: Callable[[str], None],
    on_lost: Callable[[str], None],
) -> Guard:
    """Guard `optimizer` in the way that `choose` finds, and `say` what is to be said of it.

    The other arguments are those of `choose`, `Guard` and `GuardRanks`.

    Raises:
        ConfigError: the guard is to be on, and cannot be.
    """
    way, why = choose(setting, optimizer, scaler)
    if why:
        say(why)
    asked_for = setting == "on"
    ranks = GuardRanks(run, model, optimizer, asked_for=asked_for)
    return Guard(optimizer, way, check=check, ranks=ranks, may_wait=asked_for, on_lost=on_lost)


def _in_host_memory(optimizer: torch.optim.Optimizer) -> bool:
    return all(parameter.device.type == "cpu" for parameter in _parameters(optimizer))


def _skips_by_itself(optimizer: torch.optim.Optimizer) -> bool:
    """Whether `optimizer` reads ``found_inf``; the others of PyTorch refuse to step when they meet it."""
    return (
        bool(getattr(optimizer, "_step_supports_amp_scaling", False))
        and "grad_scaler" not in inspect.signature(optimizer.step).parameters
        and _fused(optimizer)
    )


def _fused(optimizer: torch.optim.Optimizer) -> bool:
    return all(group.get("fused", True) for group in optimizer.param_groups)


class Guard:
    """Guards one optimizer until `detach`. Trouble of its own switches it off, and never ends a training.

    Its hooks come after those of the probes, whose norm it reads. PyTorch runs no post-hook when ``step()``
    raises; what was changed for the step is then put back before the next one.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        way: Way,
        *,
        check: Callable[[], torch.Tensor | None],
        ranks: GuardRanks,
        may_wait: bool,
        on_lost: Callable[[str], None],
    ) -> None:
        """Begin to guard.

        Args:
            optimizer: whose steps are skipped.
            way: how.
            check: returns a 0-d tensor that is not finite where a gradient is not; None without gradients.
            ranks: that have to decide alike.
            may_wait: whether reading a number may make the host wait for its device.
            on_lost: hears, once, why the guard is off from now on.
        """
        self.active = way is not Way.NONE
        """Whether steps are skipped."""
        self._optimizer = optimizer
        self._way = way
        self._check = check
        self._ranks = ranks
        self._may_wait = may_wait
        self._on_lost = on_lost
        self._met = False
        self._blind = False
        """Whether this rank cannot look at its own gradients, and only follows the others."""
        self._held: list[tuple[torch.Tensor, torch.Tensor]] = []
        """Parameters and the gradients that were taken from them, while a step runs."""
        self._placed: torch.Tensor | None = None
        """What stands in the optimizer's ``found_inf`` while a step runs."""
        self._known = 0
        """Parameters that had a state before the step that runs."""
        self._skipped: torch.Tensor | float | None = None
        self._hooks: list[Any] = []
        if way in (Way.HOST, Way.DEVICE):
            self._hooks = [
                optimizer.register_step_pre_hook(
                    lambda _, args, kwargs: after_closure(args, kwargs, self._meet_gradients)
                ),
                optimizer.register_step_post_hook(lambda *_: self._put_back()),
            ]

    def take(self) -> torch.Tensor | float | None:
        """Return whether a step was skipped since the last call (above 0), perhaps on the device still."""
        taken, self._skipped = self._skipped, None
        return taken

    def detach(self) -> None:
        """Leave the optimizer as it was."""
        self.active = self._blind = False
        self._put_back()
        for hook in self._hooks:
            hook.remove()

    def _meet_gradients(self) -> None:
        """Decide about the step that is about to happen."""
        if not (self.active or self._blind):
            return
        try:
            self._put_back()
            if getattr(self._optimizer, "found_inf", None) is not None:
                return  # a GradScaler that nobody told us of decides
            if not self._met:
                self._met = True
                self._ranks.meet()
            norm = self._norm()
            if self._way is Way.DEVICE:
                self._skip_on_device(norm)
            elif self._is_bad(norm):
                self._withhold()
        except GuardLost as error:
            self._lose(str(error))
        except Exception as error:  # noqa: BLE001 - the monitor's own trouble never ends a training
            self._lose(_brief(error))

    def _norm(self) -> torch.Tensor | None:
        try:
            return self._check()
        except Exception as error:
            if not self._ranks.reduces:
                raise
            # The other ranks reduce at every step: this one must not stay away.
            if not self._blind:
                self._blind, self.active = True, False
                self._on_lost(f"{_brief(error)} (on this rank, which still skips what the others skip).")
            return None

    def _is_bad(self, norm: torch.Tensor | None) -> bool:
        if not self._ranks.reduces:
            return norm is not None and not math.isfinite(self._on_host(norm))
        return self._on_host(self._ranks.any(self._flag(norm))) > 0.0

    def _on_host(self, value: torch.Tensor) -> float:
        if not value.is_cpu:
            if not self._may_wait:
                raise GuardLost(
                    f"parameters have moved to {value.device.type} since attach(), and reading them would "
                    "hold training up: attach after moving them."
                )
            if value.is_cuda and torch.cuda.is_current_stream_capturing():
                raise GuardLost("a step that waits for the device cannot be captured in a CUDA graph.")
        return float(value)

    def _flag(self, norm: torch.Tensor | None) -> torch.Tensor:
        """Return 1.0 where `norm` is not finite, else 0.0; fused kernels subtract it from their step."""
        if norm is None:
            return torch.zeros((), device=next(_parameters(self._optimizer)).device)
        return (norm * 0.0).ne(0.0).to(torch.float32)  # infinity times 0 is NaN, which equals nothing

    def _withhold(self) -> None:
        for parameter in _parameters(self._optimizer):
            if parameter.grad is not None:
                self._held.append((parameter, parameter.grad))
                parameter.grad = None
        self._skipped = 1.0

    def _skip_on_device(self, norm: torch.Tensor | None) -> None:
        if norm is None and not self._ranks.reduces:
            return
        if not _fused(self._optimizer):
            raise GuardLost("a parameter group is not fused any more.")
        flag = self._flag(norm)
        if self._ranks.reduces:
            flag = self._ranks.any(flag)
        self._known = len(self._optimizer.state)
        self._placed = self._optimizer.found_inf = flag  # type: ignore[attr-defined]
        self._skipped = flag if self._skipped is None else torch.maximum(torch.as_tensor(self._skipped), flag)

    def _put_back(self) -> None:
        """Undo what was changed for a step."""
        for parameter, gradient in self._held:
            if parameter.grad is None:
                parameter.grad = gradient
        self._held.clear()
        placed, self._placed = self._placed, None
        if placed is not None:
            if getattr(self._optimizer, "found_inf", None) is placed:
                del self._optimizer.found_inf  # type: ignore[attr-defined]
            self._clean_new_momentum(placed)

    def _clean_new_momentum(self, skipped: torch.Tensor) -> None:
        """Fill in what PyTorch's fused SGD leaves uninitialised when its very first step is skipped."""
        if len(self._optimizer.state) == self._known:
            return
        for state in list(self._optimizer.state.values())[self._known :]:
            buffer = state.get("momentum_buffer")
            if buffer is not None:
                buffer.masked_fill_(skipped.to(buffer.device, torch.bool), 0.0)

    def _lose(self, why: str) -> None:
        self.active = self._blind = False
        self._put_back()
        self._on_lost(why)


def _parameters(optimizer: torch.optim.Optimizer) -> Iterator[torch.Tensor]:
    return (parameter for group in optimizer.param_groups for parameter in group["params"])


def _brief(error: Exception) -> str:
    lines = str(error).splitlines() or [""]
    return f"{type(error).__name__}: {lines[0][:200]}"
