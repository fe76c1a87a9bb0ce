"""FileGroup: the ranks of a run without a process group agree through files in the control folder.

    <control folder>/<run>/ranks/lead.json       written by rank 0 only
    <control folder>/<run>/ranks/rank-<n>.json   written by rank n only

Each file is replaced as a whole. ``docs/ranks.md`` describes what they say.
"""

from __future__ import annotations

import contextlib
import json
import math
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from trainswitch.errors import AgreementLost
from trainswitch.files import write_atomically
from trainswitch.intervention import rank_group
from trainswitch.intervention.control_file import MAX_CONTROL_FILE_BYTES
from trainswitch.intervention.rank_group import PATIENCE_SECONDS, Word, names_of

LEAD_SCHEMA = "trainswitch.lead/1"
RANK_SCHEMA = "trainswitch.rank-word/1"

SILENT_SECONDS = 15.0
"""A rank whose file has not changed for so long is gone: its thread rewrites it every second."""

_LOOK_SECONDS = 0.1
_BEAT_SECONDS = 1.0
_FIRST_LEAD_SECONDS = 1.0
_MAX_LEAD_SECONDS = 60.0
_MAX_WORD_CHARACTERS = 1000


class FileGroup:
    """All ranks of one run; what exchanges something is called by all of them, in the same order.

    An *appointment* is a step at whose boundary all ranks meet. Rank 0 proposes it; each rank that has not
    come to that step yet confirms it, and waits there; rank 0 commits when all have confirmed, or withdraws.
    """

    def __init__(self, folder: Path, rank: int, size: int, step: Callable[[], int]) -> None:
        """Describe the group; `start` begins.

        Args:
            folder: of the run, within the control folder that all ranks share.
            rank: of this process.
            size: number of ranks.
            step: tells the number of this rank's last step.
        """
        self.rank, self.size = rank, size
        self.session = ""
        """Names this start of rank 0; the same on every rank that has joined, empty before."""
        self._folder = folder / "ranks"
        self._step = step
        self._lock = threading.RLock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._seen: dict[int, tuple[bytes, float]] = {}
        self._round = self._words = 0
        self._lead_seconds = _FIRST_LEAD_SECONDS
        self._number = 0
        self.appointment: int | None = None
        """The step at whose boundary this rank has promised to wait for rank 0's decision."""
        self._meeting = False
        self._start = uuid.uuid4().hex
        """Names this start of this rank, so that it can tell rank 0's answer from one to an earlier start."""
        self._own: dict[str, Any] = {
            "schema": RANK_SCHEMA,
            "start": self._start,
            "restores": False,
            "confirms": 0,
            "words": {},
            "left": False,
        }
        self._said: dict[str, Any] = {"schema": LEAD_SCHEMA, "number": 0, "state": "none", "round": 0}

    def start(self) -> None:
        """Begin to write this rank's file, and to look at rank 0's."""
        if self.rank == 0:
            self.session = uuid.uuid4().hex
            self._said.update(session=self.session, size=self.size)
            self._write_lead()
        self._turn()
        self._thread = threading.Thread(target=self._loop, name="trainswitch-ranks", daemon=True)
        self._thread.start()

    def assemble(self) -> None:
        """Begin, and return once all ranks of this start have done so; called by all before the first step.

        Raises:
            AgreementLost: a rank is not there, or came to a step instead.
        """
        self._own["restores"] = True
        self.start()
        deadline = time.monotonic() + rank_group.ASSEMBLE_SECONDS
        while missing := self._unassembled():
            time.sleep(_LOOK_SECONDS / 5.0)
            if time.monotonic() > deadline:
                self.lose("")
                raise AgreementLost(
                    f"restore() waited {rank_group.ASSEMBLE_SECONDS:g} s for {names_of(missing)}: call it on "
                    "every rank, before the first step, with one control folder for all, or after "
                    "torch.distributed.init_process_group()."
                )

    def _unassembled(self) -> list[int]:
        """Return the ranks that this one has not met yet in this start of the run."""
        if self.rank > 0:
            with self._lock:
                answered = self._lead().get("starts", {}).get(str(self.rank)) == self._start
                return [] if answered and self._lead().get("session") == self.session else [0]
        # Start and answer from one look: between two, a rank may begin, and would never be answered.
        said = {rank: _parse(_read(self._folder / f"rank-{rank}.json")) for rank in range(1, self.size)}
        starts = {str(rank): one.get("start") for rank, one in said.items()}
        if starts != self._said.get("starts"):
            self._say(starts=starts)
        return [
            rank
            for rank, one in said.items()
            if one.get("session") != self.session or not one.get("restores")
        ]

    # ── appointments ──────────────────────────────────────────────────────────────────────────────────

    def absent(self) -> list[int]:
        """Return the ranks that have not joined this session."""
        return [rank for rank in range(1, self.size) if not self._of(rank)]

    def propose(self, seconds_per_step: float) -> None:
        """Propose, as rank 0, a step far enough ahead of every rank to be read in time."""
        others = (int(self._of(rank).get("step", 0)) for rank in range(1, self.size))
        newest = max(self._step(), *others)
        ahead = math.ceil(self._lead_seconds / max(seconds_per_step, 1e-6))
        self._number += 1
        self.appointment = newest + min(max(2, ahead), 1_000_000)
        self._say(number=self._number, state="proposed", apply_at_step=self.appointment)

    def decide(self) -> bool:
        """Commit the appointment, as rank 0 standing at it, if every rank has confirmed it; else withdraw."""
        kept = all(self._of(rank).get("confirms") == self._number for rank in range(1, self.size))
        self.appointment = None
        self._lead_seconds = _FIRST_LEAD_SECONDS if kept else min(2.0 * self._lead_seconds, _MAX_LEAD_SECONDS)
        self._say(state="committed" if kept else "withdrawn")
        return kept

    def await_decision(self) -> bool:
        """Wait, as another rank standing at the appointment, and return whether to meet.

        Raises:
            AgreementLost: rank 0 is gone.
        """
        with self._lock:
            number = self._number
        deadline = _deadline()
        while True:
            lead = self._lead()
            if lead.get("session") != self.session or lead.get("number") != number:
                break
            if lead["state"] != "proposed":
                self._keep(number)
                return bool(lead["state"] == "committed")
            self._wait_for([0], deadline)
        self._keep(number)
        return False

    def _keep(self, number: int) -> None:
        """Forget the appointment, unless there is a newer one already."""
        with self._lock:
            if self._number == number:
                self.appointment = None

    # ── in a meeting ──────────────────────────────────────────────────────────────────────────────────

    def share(self, document: bytes | None) -> bytes:
        """Return rank 0's document on every rank; empty for None."""
        self._round += 1
        if self.rank == 0:
            self._say(round=self._round, document=(document or b"").decode())
            return document or b""
        deadline = _deadline()
        while (shared := self._shared()) is None:
            try:
                self._wait_for([0], deadline)
            except AgreementLost:
                if (shared := self._shared()) is None:  # it may have spoken, and left at once
                    raise
                break
        return shared

    def _shared(self) -> bytes | None:
        """Return rank 0's document of this round, once it is there."""
        lead = self._lead()
        if lead.get("round", 0) < self._round or lead.get("session") != self.session:
            return None
        return str(lead["document"]).encode()

    def gather(self, word: Word) -> tuple[Word, ...]:
        """Return what each rank says, in the order of the ranks."""
        self._words += 1
        key = str(self._words)
        with self._lock:
            kept = {str(self._words - 1): self._own["words"].get(str(self._words - 1))}
            self._own["words"] = {**kept, key: [word.ok, word.text[:_MAX_WORD_CHARACTERS]]}
            self._write_own()
        deadline = _deadline()
        found: dict[int, Word] = {self.rank: word}
        while missing := self._listen(key, found):
            try:
                self._wait_for(missing, deadline)
            except AgreementLost:
                if self._listen(key, found):  # it may have spoken, and left at once
                    raise
        return tuple(found[rank] for rank in range(self.size))

    def _listen(self, key: str, found: dict[int, Word]) -> list[int]:
        """Add to `found` what ranks have said under `key`; return those that have not."""
        for rank in range(self.size):
            said = self._of(rank).get("words", {}).get(key) if rank not in found else None
            if said is not None:
                found[rank] = Word(bool(said[0]), str(said[1]))
        return [rank for rank in range(self.size) if rank not in found]

    @contextlib.contextmanager
    def meeting(self) -> Iterator[None]:
        """Number what is said in one meeting from 1; a change of session waits for its end."""
        self._round, self._words, self._meeting = self._number * 1_000_000, self._number * 1_000_000, True
        try:
            yield
        finally:
            self._meeting = False
            self._own["restores"] = False  # a start that is past it is none to assemble with

    def lose(self, why: str) -> AgreementLost:
        """Tell the other ranks that this one takes no part any more."""
        with self._lock, contextlib.suppress(OSError):
            self._own["broken"] = True
            self._write_own()
        return AgreementLost(f"the ranks lost touch with each other ({why}): restart all {self.size} ranks.")

    def leave(self) -> None:
        """End this rank's part."""
        if self._thread is None:
            return
        self._stop.set()
        self._thread.join(timeout=5.0)
        with self._lock, contextlib.suppress(OSError):
            self._own["left"] = True
            self._write_own()

    # ── files ─────────────────────────────────────────────────────────────────────────────────────────

    def _loop(self) -> None:
        while not self._stop.wait(_LOOK_SECONDS):
            with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
                self._turn()

    def _turn(self) -> None:
        with self._lock:
            news = False
            if self.rank > 0:
                news = self._follow(self._lead())
            now = time.monotonic()
            if news or now - self._seen.get(self.rank, (b"", -math.inf))[1] >= _BEAT_SECONDS:
                self._write_own()

    def _follow(self, lead: dict[str, Any]) -> bool:
        """Join a new session, and confirm an appointment that this rank has not passed."""
        if lead.get("schema") != LEAD_SCHEMA or lead["size"] != self.size or self._meeting:
            return False
        news = bool(lead["session"] != self.session)
        if news:
            self.session, self.appointment, self._number = str(lead["session"]), None, 0
        if lead["number"] > self._number and lead["state"] == "proposed":
            self._number = int(lead["number"])
            self.appointment = int(lead["apply_at_step"])  # from here on this rank waits there
            if self._step() < self.appointment:
                self._own["confirms"] = self._number
            else:
                self.appointment = None
            news = True
        return news

    def _wait_for(self, ranks: list[int], deadline: float) -> None:
        time.sleep(_LOOK_SECONDS / 5.0)
        if time.monotonic() > deadline:
            raise self.lose(f"{names_of(ranks)} stayed away for {PATIENCE_SECONDS:g} s")
        for rank in ranks:
            said = self._of(rank)
            if said.get("left"):
                raise AgreementLost(
                    f"{names_of([rank])} ended before the others: restart all {self.size} ranks."
                )
            if said.get("broken"):
                raise self.lose(f"rank {rank} takes no part any more")
            if time.monotonic() - self._seen[rank][1] > SILENT_SECONDS:
                self.lose("")
                raise AgreementLost(
                    f"{names_of([rank])} is gone (its file has not changed for {SILENT_SECONDS:g} s): "
                    f"restart the run with all {self.size} ranks.",
                    (rank,),
                )

    def _of(self, rank: int) -> dict[str, Any]:
        """Return what a rank has written in this session; nothing where it has not."""
        path = self._folder / f"rank-{rank}.json"
        content = _read(path)
        if self._seen.get(rank, (None, 0.0))[0] != content:
            self._seen[rank] = content, time.monotonic()
        said = _parse(content)
        return said if said.get("session") == self.session else {}

    def _lead(self) -> dict[str, Any]:
        return _parse(_read(self._folder / "lead.json"))

    def _say(self, **facts: Any) -> None:
        with self._lock:
            self._said.update(facts)
            self._write_lead()

    def _write_lead(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        write_atomically(self._folder / "lead.json", json.dumps(self._said).encode())

    def _write_own(self) -> None:
        self._own.update(session=self.session, rank=self.rank, step=self._step(), updated_at=time.time())
        self._folder.mkdir(parents=True, exist_ok=True)
        write_atomically(self._folder / f"rank-{self.rank}.json", json.dumps(self._own).encode())
        self._seen[self.rank] = b"", time.monotonic()


def _deadline() -> float:
    return time.monotonic() + PATIENCE_SECONDS


def _read(path: Path) -> bytes:
    with contextlib.suppress(OSError), path.open("rb") as handle:
        return handle.read(MAX_CONTROL_FILE_BYTES)
    return b""


def _parse(content: bytes) -> dict[str, Any]:
    with contextlib.suppress(ValueError, RecursionError):
        found = json.loads(content)
        if isinstance(found, dict):
            return found
    return {}
