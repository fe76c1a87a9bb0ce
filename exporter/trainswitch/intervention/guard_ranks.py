"""Whether all ranks skip the same steps by themselves, and what makes them if they do not."""

from __future__ import annotations

import sys
from collections import Counter
from typing import Any

import torch

from trainswitch.errors import GuardLost
from trainswitch.intervention.rank_group import call_the_roll, names_of

_YES = "yes"

_attached: Counter[str] = Counter()
"""How many guards of each run this process has had: a later one must not meet an earlier one's keys."""


class GuardRanks:
    """The ranks whose optimizers have to step, or not to step, together.

    Data-parallel gradients are the same on all ranks, so all decide alike and nothing has to be said. A NaN
    in sharded gradients is on one rank only: there every step takes one reduction of one number over all
    ranks. It is a collective in the run's own process group, so it must be called by every rank or by none,
    and the ranks make sure of that once, through the group's store.
    """

    def __init__(
        self, run: str, model: torch.nn.Module | None, optimizer: torch.optim.Optimizer, *, asked_for: bool
    ) -> None:
        """Remember what is guarded; there may be no process group yet.

        Args:
            run: name of the run.
            model: tells how gradients are shared.
            optimizer: whose gradients are guarded.
            asked_for: whether gradients of which nothing is known may cost a reduction.
        """
        _attached[run] += 1
        self._prefix = f"trainswitch/{run}/guard/{_attached[run]}"
        self._model = model
        self._optimizer = optimizer
        self._asked_for = asked_for
        self.reduces = False
        """Whether every step takes `any`; `meet` decides it."""

    def meet(self) -> None:
        """Find out whether the ranks have to reduce; called once by every rank, at its first step.

        Raises:
            GuardLost: a rank might skip a step that others take. All ranks come to the same end.
        """
        if not torch.distributed.is_available() or not torch.distributed.is_initialized():
            return
        if torch.distributed.get_world_size() == 1:
            return
        if not self._sharded():
            if self._replicated():
                return
            if not self._asked_for:
                raise GuardLost(
                    "it cannot tell whether gradients are the same on all ranks: pass the "
                    "DistributedDataParallel module to attach(), or set guard: on, which reduces one number "
                    "over all ranks at every step."
                )
        self._call_the_roll()
        self.reduces = True

    def any(self, flag: torch.Tensor) -> torch.Tensor:
        """Return the largest `flag` (a 0-d tensor) of all ranks, in its place."""
        torch.distributed.all_reduce(flag, torch.distributed.ReduceOp.MAX)
        return flag

    def _sharded(self) -> bool:
        for group in self._optimizer.param_groups:
            if any(hasattr(parameter, "device_mesh") for parameter in group["params"]):
                return True
        fsdp: Any = sys.modules.get("torch.distributed.fsdp")  # whoever uses it has imported it
        return fsdp is not None and self._has(fsdp.FullyShardedDataParallel)

    def _replicated(self) -> bool:
        return self._has(torch.nn.parallel.DistributedDataParallel)

    def _has(self, kind: type) -> bool:
        return self._model is not None and any(isinstance(module, kind) for module in self._model.modules())

    def _call_the_roll(self) -> None:
        """Go on only if every rank has come here, too."""
        dist: Any = torch.distributed
        rank, size = dist.get_rank(), dist.get_world_size()
        store = dist.PrefixStore(self._prefix, dist.distributed_c10d._get_default_store().clone())  # noqa: SLF001
        store.set(f"here/{rank}", "1")
        verdict = call_the_roll(
            store,
            rank,
            size,
            _YES,
            lambda away: (
                f"there is none on {names_of(away)}, and sharded gradients need one on each: call attach() "
                "with the same arguments on every rank."
            ),
        )
        if verdict != _YES:
            raise GuardLost(verdict)
