"""The checkpoints of a run as a rank other than 0 sees them.

Where all ranks hold the model alike, rank 0 saves it, and each other rank keeps beside it what is its own:
random numbers, and further state such as its sampler's position. Where the state is spread over the ranks,
each keeps its shards of everything, and a checkpoint is of use only with all parts; see `rank_parts`.
"""

from __future__ import annotations

import contextlib
import re
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from trainswitch.errors import CheckpointCorrupt, CheckpointError
from trainswitch.intervention import finite
from trainswitch.intervention.checkpoint_files import (
    Kind,
    Manifest,
    RankPart,
    disk_error,
    folder_name,
    read_manifest,
    read_state,
    set_aside,
    write_manifest,
    write_state,
)
from trainswitch.intervention.checkpoint_folder import NEW, CheckpointFolder
from trainswitch.intervention.checkpoint_writer import SaveResult
from trainswitch.intervention.commands import check_run_name
from trainswitch.intervention.control_file import CheckpointEntry
from trainswitch.intervention.rank_parts import part_name, rank_folder

_PART = re.compile(r"step-\d{12,}\.[0-9a-f]{12}")
_KEPT = 3
"""Parts kept though no checkpoint of rank 0 belongs to them: it may be about to begin with theirs."""
_AT_ONCE = 2
"""Parts being written or waiting for it. One may wait: a part that rank 0 does not miss would be missed."""


class FollowerStore:
    """What `CheckpointStore` is on rank 0; it neither chooses, nor judges, nor deletes rank 0's checkpoints.

    What is saved is paired with rank 0's checkpoint by the ``moment`` in the meta of both.
    """

    def __init__(
        self,
        folder: Path,
        run: str,
        rank: int,
        *,
        judge: Callable[[dict[str, Any]], str] = finite.nonfinite,
        on_saved: Callable[[SaveResult], None] | None = None,
    ) -> None:
        """Tidy up after a session that was killed; nothing is created before the first save.

        Args:
            folder: parent of the run's own folder, the same for all ranks.
            run: name of the run.
            rank: of this process, above 0.
            judge: returns where a captured state holds NaN or infinity; called by the writer's thread.
            on_saved: called by the writer's thread once for every save that was begun.
        """
        self._run = check_run_name(run)
        self._checkpoints = CheckpointFolder(folder.absolute() / run, run)
        self._own = CheckpointFolder(rank_folder(self._checkpoints.path, rank), run)
        self._rank = rank
        self._judge = judge
        self._on_saved = on_saved
        self._writer: threading.Thread | None = None
        """The newest one; each waits for the one before."""
        self._changed = threading.Condition()
        self._unwritten = 0
        self._error: CheckpointError | None = None
        self._problems = self._own.tidy_up()

    @property
    def busy(self) -> bool:
        """Whether a save now would be refused without `wait`."""
        return self._unwritten >= _AT_ONCE

    def finish(self) -> None:
        """Wait until no save is in progress."""
        with self._changed:
            self._changed.wait_for(lambda: not self._unwritten)

    def entries(self) -> tuple[CheckpointEntry, ...]:
        """Return nothing: rank 0 tells of the run's checkpoints."""
        return ()

    def take_problems(self) -> tuple[CheckpointError, ...]:
        """Return, once, the problems that no call raised and no `SaveResult` told."""
        problems, self._problems = tuple(self._problems), []
        return problems

    def advance(self, step: int) -> None:
        """Do nothing: rank 0 judges."""

    def trouble(self, step: int) -> None:
        """Do nothing: rank 0 judges."""

    def rolled_back(self, step: int) -> None:
        """Do nothing: rank 0 judges."""

    def save(
        self,
        captured: dict[str, Any],
        step: int,
        *,
        kind: Kind = "probation",  # noqa: ARG002 - rank 0 keeps it
        pin: bool = False,  # noqa: ARG002 - rank 0 keeps it
        wait: bool = False,
    ) -> None:
        """Write this rank's own part of the checkpoint of `step` in a thread; see `CheckpointStore.save`.

        Raises:
            CheckpointError: ``busy``: two saves are in progress (without `wait`); ``disk`` or ``state``: why
                this one failed (with `wait`).
        """
        if self.busy and not wait:
            raise CheckpointError(
                "busy", f"rank {self._rank}'s part of step {step} was not saved: the last is not done yet."
            )
        writer = threading.Thread(
            target=self._work,
            args=(captured, step, self._writer),
            name=f"trainswitch-rank-{self._run}",
            daemon=True,
        )
        with self._changed:
            writer.start()  # which a limit on threads may refuse: nothing has begun then
            self._writer = writer
            self._unwritten += 1
        if wait:
            self.finish()
            if self._error is not None:
                raise self._error

    def load(self, name: str) -> tuple[dict[str, Any], CheckpointEntry]:
        """Read this rank's part of rank 0's checkpoint in the folder `name`.

        Where the state is not spread over the ranks and this rank has no part that belongs to the checkpoint,
        its random numbers go on as they are, further state is rank 0's, and `take_problems` says so.

        Raises:
            CheckpointError: rank 0's checkpoint, or a part without which it is of no use, is not here,
                damaged, or cannot be read; a damaged part has been set aside.
        """
        self._end()
        folder = self._checkpoints.path / name
        manifest = read_manifest(folder, self._run)
        part = next((part for part in manifest.parts if part.rank == self._rank), None)
        if part is not None:
            return self._read_vouched(part), manifest.entry(folder)
        captured = read_state(folder, manifest)
        try:
            own = self._read_own(manifest)
        except CheckpointError as error:
            self._problems.append(error)
            from trainswitch.intervention.rng import rng_state

            own = {"meta": {"statistics": None}, "rng": rng_state()}
        own["meta"] = {**captured["meta"], "statistics": own["meta"]["statistics"]}
        captured.update(own)
        return captured, manifest.entry(folder)

    def close(self, timeout: float = 30.0) -> None:
        """Finish the save in progress."""
        self._end(timeout)

    def _end(self, timeout: float | None = None) -> None:
        if self._writer is not None:
            self._writer.join(timeout)

    # ── this rank's own parts ─────────────────────────────────────────────────────────────────────────

    def _work(self, captured: dict[str, Any], step: int, before: threading.Thread | None) -> None:
        if before is not None:
            before.join()
        started = time.monotonic()
        self._error, nonfinite = None, ""
        try:
            nonfinite = self._judge(captured)
            self._write(captured, step, nonfinite)
        except OSError as error:
            self._error = disk_error(
                f"cannot save rank {self._rank}'s part of step {step} in {self._own.path}", error
            )
        except Exception as error:  # noqa: BLE001 - there is no one else to hear of it
            self._error = CheckpointError(
                "state",
                f"rank {self._rank}'s part of step {step} cannot be written by torch.save: {error!r}.",
            )
        result = SaveResult(
            step=step, seconds=time.monotonic() - started, error=self._error, nonfinite=nonfinite
        )
        try:
            if self._on_saved is not None:
                self._on_saved(result)
        finally:
            with self._changed:
                self._unwritten -= 1
                self._changed.notify_all()
        self._rotate()

    def _write(self, captured: dict[str, Any], step: int, nonfinite: str) -> None:
        moment = captured["meta"]["moment"]
        with self._own.draft(self._own.path / part_name(step, moment), replaces=True) as new:
            size_bytes, sha256, torch_version = write_state(new, captured)
            write_manifest(
                new,
                Manifest(
                    run=self._run,
                    step=step,
                    created_at=time.time(),
                    kind="probation",
                    size_bytes=size_bytes,
                    sha256=sha256,
                    torch_version=torch_version,
                    nonfinite=nonfinite,
                    moment=moment,
                ),
            )

    def _rotate(self) -> None:
        """Delete the parts that belong to no checkpoint of rank 0, and to no step of unknown ones."""
        with contextlib.suppress(OSError):
            spared = {  # looked for first: one that is published meanwhile is a checkpoint below
                path.name.removeprefix(NEW).partition(".")[0]
                for path in self._checkpoints.path.glob(f"{NEW}*")
            }
            needed = set()
            for folder in self._checkpoints.folders():
                try:
                    whole = read_manifest(folder, self._run)
                    needed.add(part_name(whole.step, whole.moment))
                except CheckpointError:  # for the moment, perhaps: its part would be missed later
                    spared.add(folder.name.partition(".")[0])
            held = sorted(
                (path for path in self._own.path.glob("step-*") if _PART.fullmatch(path.name)),
                key=lambda path: path.stat().st_mtime_ns,
            )
            for path in held[:-_KEPT]:
                if path.name not in needed and path.name.partition(".")[0] not in spared:
                    self._own.delete(path)

    def _read_vouched(self, part: RankPart) -> dict[str, Any]:
        """Read a part that rank 0's manifest vouches for."""
        folder = self._checkpoints.path / part.folder
        try:
            # Of the file, only what rank 0 has vouched for is believed.
            manifest = read_manifest(folder, self._run).model_copy(
                update={"sha256": part.sha256, "size_bytes": part.size_bytes}
            )
            return read_state(folder, manifest)
        except CheckpointCorrupt as error:
            with contextlib.suppress(OSError):
                set_aside(folder, "corrupt")  # so that rank 0 passes the checkpoint over from now on
            raise CheckpointCorrupt(f"{error}, so the checkpoint is of no use: choose another.") from None

    def _read_own(self, whole: Manifest) -> dict[str, Any]:
        """Read the part that belongs to rank 0's checkpoint, where that is of use without it."""
        unpaired = (
            f"rank {self._rank} goes on with the random numbers it has, and with rank 0's further state: "
            "nothing need be done."
        )
        folder = self._own.path / part_name(whole.step, whole.moment)
        if not whole.moment or not folder.exists():
            raise CheckpointError(
                "state", f"{self._own.path} has no part of {folder_name(whole.step)}, so {unpaired}"
            )
        try:
            return read_state(folder, read_manifest(folder, self._run))
        except CheckpointCorrupt as error:
            raise CheckpointCorrupt(f"{error}, so {unpaired}") from None
