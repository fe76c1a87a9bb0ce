"""The folder of a run's checkpoints: each appears in it, and goes from it, by one rename.

    step-000000001234/             one checkpoint, see `checkpoint_files`
    step-000000001234.corrupt/     set aside: its content is not what its manifest says
    .new-step-…, .old-step-…       what a killed process was about; tidied up at the next start

A folder ``step-…`` is complete and flushed to disk, or not there at all.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

from trainswitch.errors import CheckpointError
from trainswitch.files import fsync_folder
from trainswitch.intervention.checkpoint_files import (
    CHECKPOINT_FOLDER,
    disk_error,
    read_manifest,
    set_aside,
    write_manifest,
)
from trainswitch.intervention.control_file import CheckpointEntry

NEW, OLD = ".new-", ".old-"


class CheckpointFolder:
    """What the folder of one run's checkpoints, or of one rank's parts of them, promises."""

    def __init__(self, path: Path, run: str) -> None:
        """Describe it; nothing is created before the first checkpoint.

        Args:
            path: of the folder.
            run: whose checkpoints it holds.
        """
        self.path = path
        self._run = run

    def find(self) -> tuple[list[CheckpointEntry], list[CheckpointError]]:
        """Return what is there after tidying up, and what could not be used or tidied up."""
        entries, problems = [], self.tidy_up()
        for folder in self.folders():
            try:
                entries.append(read_manifest(folder, self._run).entry(folder))
            except CheckpointError as error:
                problems.append(error)
        return entries, problems

    def folders(self) -> list[Path]:
        """Return those of whole checkpoints, readable or not."""
        return [path for path in self.path.glob("step-*") if CHECKPOINT_FOLDER.fullmatch(path.name)]

    def tidy_up(self) -> list[CheckpointError]:
        """Undo or end what a killed session was about; return what could not be read or removed."""
        try:
            children = sorted(self.path.iterdir())
        except FileNotFoundError:
            return []
        except OSError as error:
            return [disk_error(f"cannot read the checkpoints in {self.path}", error)]
        return [problem for child in children if (problem := self._tidy_up(child)) is not None]

    def _tidy_up(self, child: Path) -> CheckpointError | None:
        target = child.with_name(child.name.removeprefix(OLD))
        try:
            if child.name.startswith(OLD) and not target.exists():
                child.rename(target)  # killed between the two renames of a replacement
            elif child.name.startswith((NEW, OLD)):
                shutil.rmtree(child)
        except OSError as error:
            return disk_error(f"cannot tidy up {child}", error)
        return None

    @contextlib.contextmanager
    def draft(self, target: Path, *, replaces: bool) -> Iterator[Path]:
        """Give a new folder to write a checkpoint into; at the end of the block it is at `target`, durably.

        If the block, or what follows it, fails, the folder is gone and what was at `target` stays.

        Args:
            target: where the checkpoint is to be.
            replaces: whether a checkpoint there is an older one of ours; anything else is set aside.

        Raises:
            OSError: as the operating system says.
        """
        new, old = (target.with_name(prefix + target.name) for prefix in (NEW, OLD))
        if not self.path.is_dir():
            self.path.mkdir(parents=True, exist_ok=True)  # another rank may have made it just now
            fsync_folder(self.path.parent)
        try:
            shutil.rmtree(new, ignore_errors=True)
            new.mkdir()
            yield new
            _swap(new, target, old, replaces=replaces)
        except BaseException:
            shutil.rmtree(new, ignore_errors=True)
            raise
        fsync_folder(self.path)
        shutil.rmtree(old, ignore_errors=True)

    def delete(self, folder: Path) -> None:
        """Delete a checkpoint, so that a kill in between leaves nothing that looks whole.

        Raises:
            OSError: as the operating system says; if `folder` is gone all the same, its rest is tidied up at
                the next start.
        """
        doomed = folder.with_name(NEW + folder.name)
        folder.rename(doomed)
        shutil.rmtree(doomed)

    def record(self, entry: CheckpointEntry) -> None:
        """Write the kind and the pin of `entry` into its manifest.

        Raises:
            CheckpointError: the manifest cannot be read or written.
        """
        folder = Path(entry.path)
        manifest = read_manifest(folder, self._run)
        try:
            write_manifest(folder, manifest.model_copy(update={"kind": entry.kind, "pinned": entry.pinned}))
        except OSError as error:
            what = entry.kind + (" and pinned" if entry.pinned else "")
            raise disk_error(f"cannot mark the checkpoint {folder} as {what}", error) from error


def _swap(new: Path, target: Path, old: Path, *, replaces: bool) -> None:
    """Put `new` in the place of `target`; until it is there, what was there is kept as `old`."""
    if target.exists():
        shutil.rmtree(old, ignore_errors=True)
        if replaces:
            target.rename(old)
        else:
            set_aside(target, "foreign")
    try:
        new.rename(target)
    except OSError:
        if old.exists():
            old.rename(target)
        raise
