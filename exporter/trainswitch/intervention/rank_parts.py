"""Each rank's part of a checkpoint, in a folder of its own beside rank 0's checkpoints.

    <run>/step-000000001234/                        rank 0's, see `checkpoint_files`
    <run>/rank-3/step-000000001234.5e884898da28/    rank 3's part of it; of the same format

A part carries a digest of the *moment* at which all ranks copied their state, so that a step which is saved
again never takes the place of a part that a checkpoint needs. Where the state is spread over the ranks, rank
0's manifest names every part with its checksum: the checkpoint appears once all are durable, or not at all.
Nobody sends anything: rank 0's writer looks for the others' manifests in the folder that all share.
"""

from __future__ import annotations

import contextlib
import hashlib
import time
from pathlib import Path

from trainswitch.errors import CheckpointCorrupt, CheckpointError
from trainswitch.intervention.checkpoint_files import (
    MANIFEST_FILE,
    STATE_FILE,
    Manifest,
    RankPart,
    disk_error,
    folder_name,
    read_manifest,
)
from trainswitch.intervention.checkpoint_folder import NEW, CheckpointFolder

STALLED_SECONDS = 60.0
"""How long no missing part may have grown before the checkpoint is given up."""
_LOOK_SECONDS = 0.05


def rank_folder(run_folder: Path, rank: int) -> Path:
    """Return the folder of a rank's parts."""
    return run_folder / f"rank-{rank}"


def part_name(step: int, moment: str) -> str:
    """Return the name of the folder of a part that was copied after `step`, at `moment`."""
    return f"{folder_name(step)}.{hashlib.sha256(moment.encode()).hexdigest()[:12]}"


def await_parts(
    run_folder: Path, run: str, step: int, moment: str, ranks: int
) -> tuple[tuple[RankPart, ...], str]:
    """Wait until the parts of ranks 1 and up are there; return them, and where one holds NaN or infinity.

    Args:
        run_folder: of the run.
        run: its name.
        step: that was saved.
        moment: at which all ranks copied their state.
        ranks: how many ranks' parts the checkpoint has, rank 0's included.

    Raises:
        CheckpointError: ``state``: the ranks have agreed on no moment yet; ``disk``: a part did not come.
    """
    if ranks > 1 and not moment:
        raise CheckpointError(
            "state",
            f"step {step} was not saved, because the ranks have not met yet: save from the second step on.",
        )
    parts: dict[int, RankPart] = {}
    nonfinite = ""
    seen, since = -1, time.monotonic()
    while missing := [rank for rank in range(1, ranks) if rank not in parts]:
        for rank in missing:
            path = rank_folder(run_folder, rank) / part_name(step, moment)
            if not (path / MANIFEST_FILE).exists():
                continue
            manifest = read_manifest(path, run)
            parts[rank] = RankPart(
                rank=rank,
                folder=str(path.relative_to(run_folder)),
                size_bytes=manifest.size_bytes,
                sha256=manifest.sha256,
            )
            nonfinite = nonfinite or (manifest.nonfinite and f"rank {rank}'s {manifest.nonfinite}")
        grown = len(parts) + sum(_size(run_folder, rank, step, moment) for rank in missing)
        if grown != seen:
            seen, since = grown, time.monotonic()
        elif time.monotonic() - since > STALLED_SECONDS:
            raise CheckpointError(
                "disk",
                f"step {step} was not saved: rank {missing[0]}'s part has not come to "
                f"{rank_folder(run_folder, missing[0])} for {STALLED_SECONDS:g} s: give all ranks one "
                "checkpoint folder, and look at that rank's log.",
            )
        else:
            time.sleep(_LOOK_SECONDS)
    return tuple(parts[rank] for rank in sorted(parts)), nonfinite


def _size(run_folder: Path, rank: int, step: int, moment: str) -> int:
    """Return how much of a part has been written."""
    with contextlib.suppress(OSError):
        return (rank_folder(run_folder, rank) / f"{NEW}{part_name(step, moment)}" / STATE_FILE).stat().st_size
    return 0


def check_parts(run_folder: Path, run: str, manifest: Manifest) -> None:
    """Look whether every part that `manifest` vouches for is there; each rank reads its own to the end.

    Raises:
        CheckpointCorrupt: one is missing, or is not the one that was vouched for.
        CheckpointError: ``disk``: one cannot be read.
    """
    for part in manifest.parts:
        folder = run_folder / part.folder
        try:
            missing = (folder / STATE_FILE).stat().st_size != part.size_bytes
        except FileNotFoundError:
            missing = True
        except OSError as error:
            raise disk_error(f"cannot read rank {part.rank}'s part {folder}", error) from error
        if missing or read_manifest(folder, run).sha256 != part.sha256:
            raise CheckpointCorrupt(f"rank {part.rank}'s part {folder} is missing, or is another one")


def delete_parts(run_folder: Path, run: str, parts: tuple[RankPart, ...]) -> None:
    """Delete the parts of a checkpoint that is not there any more.

    Raises:
        OSError: as the operating system says.
    """
    for part in parts:
        folder = run_folder / part.folder
        if folder.exists():
            CheckpointFolder(folder.parent, run).delete(folder)
