"""The checkpoints of a run as a rank other than 0 sees them.

Rank 0 saves what all ranks hold alike. Each other rank keeps what is its own (random numbers, further state
such as its sampler's position) in files beside rank 0's checkpoints, and loads the two together:

    <folder>/<run>/step-000000001234/                  rank 0's checkpoint, see `checkpoint_files`
    <folder>/<run>/rank-3/step-000000001234.state      of rank 3: a line of JSON, then what torch.save wrote
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from trainswitch.errors import CheckpointCorrupt, CheckpointError
from trainswitch.files import write_atomically
from trainswitch.intervention.checkpoint_files import (
    Kind,
    disk_error,
    folder_name,
    read_manifest,
    read_state,
)
from trainswitch.intervention.checkpoints import SaveResult
from trainswitch.intervention.commands import check_run_name
from trainswitch.intervention.control_file import CheckpointEntry

RANK_SCHEMA = "trainswitch.rank/1"

_KEPT = 2
"""Files kept though rank 0 has no checkpoint of their step: it may still be writing that."""


class FollowerStore:
    """What `CheckpointStore` is on rank 0; it neither chooses, nor judges, nor deletes rank 0's checkpoints.

    What is saved is paired with rank 0's checkpoint by the ``moment`` in the meta of both.
    """

    def __init__(
        self, folder: Path, run: str, rank: int, *, on_saved: Callable[[SaveResult], None] | None = None
    ) -> None:
        """Describe the folders; nothing is created before the first save.

        Args:
            folder: parent of the run's own folder, the same for all ranks.
            run: name of the run.
            rank: of this process, above 0.
            on_saved: called by the writer's thread once for every save that was begun.
        """
        self._run = check_run_name(run)
        self._folder = folder.absolute() / run
        self._own = self._folder / f"rank-{rank}"
        self._rank = rank
        self._on_saved = on_saved
        self._writer: threading.Thread | None = None
        self._error: CheckpointError | None = None
        self._problems: list[CheckpointError] = []

    @property
    def busy(self) -> bool:
        """Whether a save is in progress."""
        return self._writer is not None and self._writer.is_alive()

    def finish(self) -> None:
        """Wait until no save is in progress."""
        if self._writer is not None:
            self._writer.join()

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
        wait: bool = False,
    ) -> None:
        """Write this rank's own part of the checkpoint of `step` in a thread; see `CheckpointStore.save`.

        Raises:
            CheckpointError: ``busy``: the save before is still being written (without `wait`); ``disk`` or
                ``state``: why this one failed (with `wait`).
        """
        if self.busy and not wait:
            raise CheckpointError(
                "busy", f"rank {self._rank}'s part of step {step} was not saved: the last is not done yet."
            )
        self.finish()
        self._writer = threading.Thread(
            target=self._work, args=(captured, step), name=f"trainswitch-rank-{self._run}", daemon=True
        )
        self._writer.start()
        if wait:
            self.finish()
            if self._error is not None:
                raise self._error

    def load(
        self, step: int | None = None, before_step: int | None = None
    ) -> tuple[dict[str, Any], CheckpointEntry]:
        """Read rank 0's checkpoint of `step` and put what is this rank's own in the place of rank 0's.

        Where this rank has nothing that belongs to it, its random numbers go on as they are, further state is
        rank 0's, and `take_problems` says so.

        Raises:
            CheckpointError: rank 0's checkpoint is not here, damaged, or cannot be read.
        """
        if step is None or before_step is not None:
            raise CheckpointError("state", "rank 0 chooses the checkpoint, and names its step.")
        self.finish()
        folder = self._folder / folder_name(step)
        manifest = read_manifest(folder, self._run)
        captured = read_state(folder, manifest)
        try:
            own = self._read_own(step, captured["meta"].get("moment"))
        except CheckpointError as error:
            self._problems.append(error)
            from trainswitch.intervention.training_state import rng_state

            own = {"meta": {"statistics": None}, "rng": rng_state()}
        own["meta"] = {**captured["meta"], "statistics": own["meta"]["statistics"]}
        captured.update(own)
        return captured, manifest.entry(folder)

    def close(self, timeout: float = 30.0) -> None:
        """Finish the save in progress."""
        if self._writer is not None:
            self._writer.join(timeout)

    # ── this rank's own files ─────────────────────────────────────────────────────────────────────────

    def _work(self, captured: dict[str, Any], step: int) -> None:
        started = time.monotonic()
        self._error = None
        try:
            self._write(captured, step)
            self._rotate()
        except OSError as error:
            self._error = disk_error(
                f"cannot save rank {self._rank}'s part of step {step} in {self._own}", error
            )
        except Exception as error:  # noqa: BLE001 - there is no one else to hear of it
            self._error = CheckpointError(
                "state",
                f"rank {self._rank}'s part of step {step} cannot be written by torch.save: {error!r}.",
            )
        if self._on_saved is not None:
            self._on_saved(SaveResult(step=step, seconds=time.monotonic() - started, error=self._error))

    def _write(self, captured: dict[str, Any], step: int) -> None:
        import torch

        buffer = io.BytesIO()
        torch.save(captured, buffer)
        content = buffer.getvalue()
        head = {
            "schema": RANK_SCHEMA,
            "run": self._run,
            "rank": self._rank,
            "step": step,
            "size_bytes": len(content),
            "sha256": hashlib.sha256(content).hexdigest(),
        }
        self._own.mkdir(parents=True, exist_ok=True)
        write_atomically(self._path(step), json.dumps(head).encode() + b"\n" + content)

    def _rotate(self) -> None:
        held = sorted(self._own.glob("step-*.state"), key=lambda path: path.stat().st_mtime_ns)
        for path in held[:-_KEPT]:
            if not (self._folder / path.stem).is_dir():
                with contextlib.suppress(OSError):
                    path.unlink()

    def _read_own(self, step: int, moment: str | None) -> dict[str, Any]:
        import torch

        path = self._path(step)
        unpaired = (
            f"rank {self._rank} goes on with the random numbers it has, and with rank 0's further state"
        )
        try:
            head, _, content = path.read_bytes().partition(b"\n")
        except OSError as error:
            raise disk_error(f"cannot read {path}, so {unpaired}", error) from error
        try:
            told = json.loads(head)
            whole = told["schema"] == RANK_SCHEMA and told["sha256"] == hashlib.sha256(content).hexdigest()
        except (ValueError, KeyError, TypeError):
            whole = False
        if not whole:
            raise CheckpointCorrupt(f"{path} is damaged, so {unpaired}: nothing need be done.")
        own: dict[str, Any] = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
        if not moment or own["meta"]["moment"] != moment:
            raise CheckpointError(
                "state", f"{path} is not of the checkpoint of that step, so {unpaired}: nothing need be done."
            )
        return own

    def _path(self, step: int) -> Path:
        return self._own / f"{folder_name(step)}.state"
