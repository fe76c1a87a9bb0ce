"""Whether all ranks skip the same steps by themselves, and what makes them if they do not."""

from __future__ import annotations

import sys
from collections import Counter
from datetime import timedelta
from typing import Any

import torch

from trainswitch.errors import GuardLost
from trainswitch.intervention.rank_group import names_of

ASSEMBLE_SECONDS = 20.0
"""How long rank 0 waits, once, for the guard of every rank."""

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
        """Go on only if every rank has come here, too; whoever writes the verdict first decides for all."""
        dist: Any = torch.distributed
        rank, size = dist.get_rank(), dist.get_world_size()
        store = dist.PrefixStore(self._prefix, dist.distributed_c10d._get_default_store().clone())  # noqa: SLF001
        store.set(f"here/{rank}", "1")
        verdict = _YES
        if rank == 0:
            keys = [f"here/{other}" for other in range(size)]
            if not _came(store, keys, ASSEMBLE_SECONDS):
                away = [other for other, key in enumerate(keys) if not store.check([key])]
                verdict = (
                    f"there is none on {names_of(away)}, and sharded gradients need one on each: call "
                    "attach() with the same arguments on every rank."
                )
        elif not _came(store, ["verdict"], 3.0 * ASSEMBLE_SECONDS):
            verdict = "rank 0 did not come to its first step: call attach() and step() on every rank."
        if rank == 0 or verdict != _YES:
            store.compare_set("verdict", "", verdict)
        verdict = str(store.get("verdict").decode())
        if verdict != _YES:
            raise GuardLost(verdict)


def _came(store: Any, keys: list[str], seconds: float) -> bool:
    try:
        store.wait(keys, timedelta(seconds=seconds))
    except Exception:  # noqa: BLE001 - a timeout has another type in each kind of store
        return False
    return True
