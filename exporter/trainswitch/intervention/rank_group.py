"""RankGroup: a gloo group of the product's own, over which the ranks of a run agree.

It is built on the store of the run's process group and touches none of the run's own groups, whatever their
backend. Every wait in it is cut into seconds and given up when a rank has reported the group broken, so a
rank that dies holds nobody for ever.
"""

from __future__ import annotations

import contextlib
import re
import sys
import time
import uuid
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from trainswitch.errors import AgreementLost

if TYPE_CHECKING:
    import torch

MAX_DOCUMENT_BYTES = 100_000
"""Bound of what `RankGroup.share` carries."""
ASSEMBLE_SECONDS = 20.0
"""How long rank 0 waits, once, for every rank to have a monitor."""
PATIENCE_SECONDS = 1800.0
"""How long a rank that lives may stay away from a boundary: what gloo and NCCL grant a collective, too."""

_LOOK_SECONDS = 1.0
_SIGN_SECONDS = 5.0
_WORD_BYTES = 1024
_HEADER_ITEMS = 3
_FORM = "form "

_attached: Counter[str] = Counter()
"""How many monitors of each run this process has had: a later one must not meet an earlier one's keys."""


class Header(NamedTuple):
    """What rank 0 says to all between two boundaries."""

    number: int
    """Counts the headers; every rank has the same."""
    meet: bool
    """Whether there is something to carry out."""
    stride: int
    """Boundaries until the next header."""


class Word(NamedTuple):
    """What one rank says to all."""

    ok: bool
    text: str


class RankGroup:
    """All ranks of one run. What exchanges something must be called by all of them, in the same order.

    Each of those raises `AgreementLost` when a rank is gone or stays away too long; the group is then of no
    more use.
    """

    def __init__(self, run: str, rank: int, size: int) -> None:
        """Say on the run's store that this rank has a monitor, if there is a process group yet."""
        _attached[run] += 1
        self._prefix = f"trainswitch/{run}/{_attached[run]}"
        self.rank = rank
        self.size = size
        self.session = ""
        """Names this group among all that ever were; the same on every rank, empty until there is one."""
        self._store: Any = None
        self._group: Any = None
        self._work: Any = None
        self._header: torch.Tensor | None = None
        self._number = 0
        with contextlib.suppress(Exception):  # `form` finds out what is wrong, and says it
            self._sign_in()

    def reachable(self) -> bool:
        """Return whether there is a process group; called at the first boundary."""
        try:
            return self._sign_in()
        except Exception:  # noqa: BLE001 - `form` finds out what is wrong, and says it
            return True

    def form(self) -> None:
        """Make the group; called by every rank at its first boundary.

        Raises:
            AgreementLost: there is no process group of all ranks, a rank has no monitor, or gloo cannot
                connect. All ranks come to the same end.
        """
        try:
            self._sign_in()
            verdict = self._verdict()
            if verdict.startswith(_FORM):
                self.session = verdict.removeprefix(_FORM)
                self._connect()
        except AgreementLost:
            raise
        except Exception as error:
            raise AgreementLost(
                f"the {self.size} ranks could not be connected for commands: {_brief(error)}."
            ) from error
        if not self.session:
            raise AgreementLost(verdict)

    def announce(self, *, meet: bool, stride: int) -> None:
        """Start to send the next header (rank 0's arguments count), and do not wait for it."""
        import torch

        assert self._work is None
        self._number += 1
        if self.rank == 0:
            self._header = torch.tensor([self._number, int(meet), stride])
        self._work = self._call(lambda: self._group.broadcast(self._header, 0, self._limit()))

    def read(self) -> Header:
        """Return the header that was announced last; it has usually arrived long ago."""
        assert self._header is not None
        work, self._work = self._work, None
        self._wait(work)
        number, meet, stride = self._header.tolist()
        if number != self._number:
            raise self.lose(f"header {number} came where {self._number} was due")
        return Header(number, bool(meet), max(1, stride))

    def share(self, document: bytes | None) -> bytes:
        """Return rank 0's document, at most `MAX_DOCUMENT_BYTES`, on every rank; empty for None."""
        import torch

        content = document or b""
        assert len(content) <= MAX_DOCUMENT_BYTES
        length = torch.tensor([len(content)], dtype=torch.int64)
        self._broadcast(length)
        size = int(length[0])
        if size == 0:
            return b""
        if size > MAX_DOCUMENT_BYTES:
            raise self.lose(f"rank 0 announced {size} bytes")
        payload = torch.frombuffer(bytearray(content or bytes(size)), dtype=torch.uint8)
        self._broadcast(payload)
        return bytes(payload.tolist())

    def gather(self, word: Word) -> tuple[Word, ...]:
        """Return what each rank says, in the order of the ranks; texts are cut at 1,000 bytes."""
        import torch

        text = word.text.encode(errors="replace")[: _WORD_BYTES - 1]
        mine = torch.zeros(_WORD_BYTES, dtype=torch.uint8)
        mine[: len(text) + 1] = torch.tensor([int(word.ok), *text], dtype=torch.uint8)
        every = [torch.empty_like(mine) for _ in range(self.size)]
        self._wait(self._call(lambda: self._group.allgather([every], [mine])))
        found = (bytes(said.tolist()) for said in every)
        return tuple(Word(bool(said[0]), said[1:].rstrip(b"\0").decode("utf-8", "ignore")) for said in found)

    def leave(self) -> None:
        """End this rank's part; the others are not held up by it."""
        if self._group is None:
            return
        with contextlib.suppress(Exception):
            self._store.set(f"left/{self.rank}", "1")
        with contextlib.suppress(Exception):
            if self._work is not None:
                self._work.wait(timedelta(seconds=_SIGN_SECONDS))
        self._drop()

    # ── making the group ──────────────────────────────────────────────────────────────────────────────

    def _sign_in(self) -> bool:
        if self._store is not None:
            return True
        dist = sys.modules.get("torch.distributed")
        if dist is None or not dist.is_available() or not dist.is_initialized():
            return False
        if dist.get_world_size() != self.size or dist.get_rank() != self.rank:
            raise AgreementLost(
                f"the process group has rank {dist.get_rank()} of {dist.get_world_size()} where the "
                f"environment says {self.rank} of {self.size}: start all ranks of the run alike."
            )
        store = dist.distributed_c10d._get_default_store()  # noqa: SLF001 - there is no public way to it
        store = dist.PrefixStore(self._prefix, store.clone())  # of our own, because we set its timeout
        store.set_timeout(timedelta(seconds=ASSEMBLE_SECONDS))
        store.set(f"here/{self.rank}", "1")
        self._store = store
        return True

    def _verdict(self) -> str:
        """Decide, all ranks alike, whether to form the group."""
        return call_the_roll(
            self._store,
            self.rank,
            self.size,
            _FORM + uuid.uuid4().hex,
            lambda away: (
                f"this run has {self.size} ranks and no monitor on {names_of(away)}, and commands need one "
                "on each: call attach() on every rank."
            ),
        )

    def _connect(self) -> None:
        import torch

        dist: Any = sys.modules["torch.distributed"]
        store = dist.PrefixStore("gloo", self._store)
        self._group = dist.ProcessGroupGloo(store, self.rank, self.size, self._limit())
        self._header = torch.zeros(_HEADER_ITEMS, dtype=torch.int64)

    # ── waiting, and losing ───────────────────────────────────────────────────────────────────────────

    def _broadcast(self, tensor: torch.Tensor) -> None:
        self._wait(self._call(lambda: self._group.broadcast(tensor, 0, self._limit())))

    def _limit(self) -> timedelta:
        return timedelta(seconds=PATIENCE_SECONDS)

    def _call(self, issue: Any) -> Any:
        try:
            return issue()
        except RuntimeError as error:
            raise self.lose(_brief(error)) from error

    def _wait(self, work: Any) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                work.wait(timedelta(seconds=_LOOK_SECONDS))
            except RuntimeError as error:
                if work.is_completed() and not _succeeded(work):
                    raise self.lose(_brief(error)) from error
            else:
                return
            self.check()
            if time.monotonic() > deadline:
                raise self.lose(f"no answer for {PATIENCE_SECONDS:g} s")

    def check(self) -> None:
        """Ask the store whether another rank has found the group broken.

        Raises:
            AgreementLost: it has, or the store itself is gone.
        """
        try:
            broken = self._store.check(["broken"])
        except Exception as error:
            raise self.lose(f"the process group's store is gone ({_brief(error)})") from error
        if broken:
            raise self.lose("another rank has lost its connection")

    def lose(self, why: str) -> AgreementLost:
        """Tell the other ranks, find out who is gone, and let the group go."""
        gone: list[int] = []
        left: list[int] = []
        with contextlib.suppress(Exception):
            self._store.set(f"survivor/{self.rank}", "1")
            self._store.set("broken", "1")
            gone = _missing(self._store, "survivor", self.size, _SIGN_SECONDS)
            left = [rank for rank in gone if self._store.check([f"left/{rank}"])]
        self._drop()
        gone = [rank for rank in gone if rank not in left]
        if gone:
            what = f"{names_of(gone)} is gone" if len(gone) == 1 else f"{names_of(gone)} are gone"
        elif left:
            what = f"{names_of(left)} ended before the others"
        else:
            what = "the ranks lost touch with each other"
        return AgreementLost(f"{what} ({why}): restart the run with all {self.size} ranks.", tuple(gone))

    def _drop(self) -> None:
        group, self._group, self._work = self._group, None, None
        if group is not None:
            with contextlib.suppress(Exception):
                group.abort()  # or its end would wait for what a dead rank never sends


def call_the_roll(store: Any, rank: int, size: int, yes: str, without: Callable[[list[int]], str]) -> str:
    """Return what all ranks decide alike, by what is in `store`: whoever writes first decides for all.

    Args:
        store: of this roll only; every rank that takes part has set ``here/<its number>`` in it.
        rank: of this process.
        size: number of ranks.
        yes: the verdict if all are here; that of rank 0 counts.
        without: makes the verdict of the ranks that are not here.
    """
    verdict = yes
    if rank == 0:
        if away := _missing(store, "here", size, ASSEMBLE_SECONDS):
            verdict = without(away)
    else:
        try:
            store.wait(["verdict"], timedelta(seconds=3.0 * ASSEMBLE_SECONDS))
        except Exception:  # noqa: BLE001 - a timeout has another type in each kind of store
            verdict = (
                f"rank 0 did not come to its first step within {3.0 * ASSEMBLE_SECONDS:g} s of rank "
                f"{rank}'s: call attach() and step() on every rank."
            )
    if rank == 0 or verdict != yes:
        store.compare_set("verdict", "", verdict)
    return str(store.get("verdict").decode())


def _missing(store: Any, key: str, size: int, seconds: float) -> list[int]:
    """Return the ranks that have not set ``key/<their number>`` after so many seconds."""
    keys = {rank: f"{key}/{rank}" for rank in range(size)}
    with contextlib.suppress(Exception):
        store.wait(list(keys.values()), timedelta(seconds=seconds))
        return []
    return [rank for rank, name in keys.items() if not store.check([name])]


def names_of(ranks: list[int]) -> str:
    """Return the ranks as words."""
    return ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(map(str, ranks))


def _succeeded(work: Any) -> bool:
    """Return whether a completed work did what it should: it may have ended just after a wait for it did."""
    try:
        work.wait(timedelta(seconds=_LOOK_SECONDS))
    except RuntimeError:
        return False
    return True


def _brief(error: Exception) -> str:
    lines = re.sub(r"^\[\S+\] ", "", str(error)).splitlines() or [type(error).__name__]
    return lines[0].partition(". This is typically")[0][:200].rstrip(". ")
