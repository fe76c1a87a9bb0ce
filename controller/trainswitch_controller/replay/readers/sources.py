"""Which files make up which run, and what the run is called."""

from __future__ import annotations

import dataclasses
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from trainswitch_controller.errors import NotALog, RecordedRunError
from trainswitch_controller.replay.readers.detect import Format, detect

MAX_NAME = 128
"""Longest name of a run, as `check_run_name` has it."""

_OUR_PART = re.compile(r"steps\.\d{10}\.csv")
_CHECKPOINT = re.compile(r"checkpoint-(\d+)")
_IN_A_FOLDER = re.compile(
    r".*\.(csv|tsv|jsonl|ndjson|parquet)|trainer_state\.json|.*tfevents.*", re.IGNORECASE
)
_FILE_SAYS_NOTHING = re.compile(
    r"metrics|trainer_state|(wandb-)?history|logs?|train(ing)?|steps\.\d{10}|events\.out\.tfevents.*",
    re.IGNORECASE,
)
_FOLDER_SAYS_NOTHING = re.compile(
    r"rank-\d+|version_\d+|checkpoint-\d+|tb|tensorboard|csv|logs?|runs?|metrics", re.IGNORECASE
)
"""Names that many runs share: the name of the folder around them is needed."""


@dataclasses.dataclass(frozen=True, slots=True)
class Source:
    """The files of one run, or of the several runs of one file."""

    path: Path
    """What people know it by: the file, or the folder with its parts."""
    format: Format
    files: tuple[Path, ...]
    """Oldest first."""


def find(paths: Iterable[Path], wanted: Format | None) -> tuple[list[Source], list[NotALog]]:
    """Return the sources in files and folders, and why files that were named are none.

    Args:
        paths: files, and folders whose logs are looked for at any depth.
        wanted: format of the files that are named, and of those that are looked for in folders; None to
            detect it.

    Raises:
        RecordedRunError: a path does not exist, or a folder holds no log.
    """
    files: list[tuple[Path, Format]] = []
    left_out: list[NotALog] = []
    for path in paths:
        if path.is_dir():
            files += _in_folder(path, wanted)
        elif path.exists():
            try:
                files.append((path, wanted or detect(path)))
            except NotALog as error:
                left_out.append(error)
        else:
            raise RecordedRunError(f"{path} does not exist: give a log of a run, or a folder with some.")
    return _grouped(dict(files), left_out), left_out


def names_of(paths: Sequence[Path]) -> list[str]:
    """Return a run name for each path, each of them once; names are only as long as that needs.

    A name is made of the file's name without its ending, if that tells anything, and of as many folders
    around it as make it tell something and differ from all others.
    """
    parts = [_parts(path) for path in paths]
    lengths = [_telling(names) for names in parts]
    longest = max((len(names) for names in parts), default=0)
    for _ in range(longest):
        names = ["-".join(own[-length:]) for own, length in zip(parts, lengths, strict=True)]
        counts = Counter(names)
        lengths = [
            min(length + (counts[name] > 1), len(own))
            for own, length, name in zip(parts, lengths, names, strict=True)
        ]
    return unique("-".join(own[-length:]) for own, length in zip(parts, lengths, strict=True))


def unique(names: Iterable[str]) -> list[str]:
    """Return `names` as run names, with a number behind those that were there before."""
    given: list[str] = []
    for name in names:
        clean = re.sub(r"[^A-Za-z0-9._]+", "-", name).lstrip("._-").rstrip("-") or "run"
        candidate, number = clean[:MAX_NAME], 1
        while candidate in given:
            number += 1
            candidate = f"{clean[: MAX_NAME - 6]}-{number}"
        given.append(candidate)
    return given


def _in_folder(folder: Path, wanted: Format | None) -> list[tuple[Path, Format]]:
    found: list[tuple[Path, Format]] = []
    for path in _candidates(folder):
        try:
            detected = detect(path)
        except NotALog:
            continue
        if wanted in {None, detected}:
            found.append((path, detected))
    if not found:
        what = f"log in the format {wanted}" if wanted else "log of a run"
        raise RecordedRunError(
            f"{folder} holds no {what}: looked for are *.csv, *.tsv, *.jsonl, *.ndjson, *.parquet, "
            "trainer_state.json and TensorBoard's event files; name a file that is called otherwise."
        )
    return found


def _candidates(folder: Path) -> Iterator[Path]:
    for place, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted(names):
            if _IN_A_FOLDER.fullmatch(name):
                yield Path(place) / name


def _grouped(files: dict[Path, Format], left_out: list[NotALog]) -> list[Source]:
    """Put the files of one run together; a Hugging Face run's last state has all that earlier ones have."""
    groups: dict[tuple[Path, Format], list[Path]] = {}
    for path, form in files.items():
        key = path
        if form == "tensorboard" or _OUR_PART.fullmatch(path.name):
            key = path.parent
        elif form == "trainer-state":
            key = path.parent.parent if _CHECKPOINT.fullmatch(path.parent.name) else path.parent
        groups.setdefault((key, form), []).append(path)
    sources = []
    for (key, form), members in groups.items():
        if form == "trainer-state":
            *earlier, last = sorted(members, key=_steps_of_state)
            left_out += [
                NotALog(f"{path} is an earlier state of {last} and was left out.") for path in earlier
            ]
            sources.append(Source(last, form, (last,)))
        else:
            members.sort(key=lambda path: path.name)
            sources.append(Source(key if len(members) > 1 else members[0], form, tuple(members)))
    return sources


def _steps_of_state(path: Path) -> float:
    match = _CHECKPOINT.fullmatch(path.parent.name)
    return float(match[1]) if match else float("inf")


def _parts(path: Path) -> list[str]:
    """Return the folders of a path and the file's name without its ending, if that tells anything."""
    path = path.absolute()
    *folders, name = path.parts[1:]
    name = name if path.is_dir() else path.stem
    return folders if folders and _FILE_SAYS_NOTHING.fullmatch(name) else [*folders, name]


def _telling(parts: list[str]) -> int:
    """Return how many of the last parts of a path are needed until one of them tells something."""
    for length, part in enumerate(reversed(parts), 1):
        if not _FOLDER_SAYS_NOTHING.fullmatch(part):
            return length
    return len(parts)
