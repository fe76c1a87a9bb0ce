"""What rotation, pins and kinds promise to a rollback, over any course that a run can take."""

from __future__ import annotations

from pathlib import Path

import hypothesis.strategies as st
from hypothesis import given, settings

from trainswitch.intervention.checkpoint_files import Kind
from trainswitch.intervention.checkpoint_list import CheckpointList
from trainswitch.intervention.control_file import CheckpointEntry

FOLDER = Path("/checkpoints")


class Course:
    """The course of a run: its list of checkpoints as the writer keeps it, and what has to hold of it."""

    def __init__(self, keep: int = 3, probation_steps: int = 10, max_pinned: int = 2) -> None:
        self.keep, self.probation, self.max_pinned = keep, probation_steps, max_pinned
        self.list = CheckpointList(keep=keep, probation_steps=probation_steps, max_pinned=max_pinned)
        self.clock = 0.0
        self.step = 0
        self.pins: list[str] = []

    def safe(self) -> CheckpointEntry | None:
        """The stable checkpoint that a rollback would take now."""
        return next((entry for entry in self.list.choices() if entry.kind == "stable"), None)

    def save(self, kind: Kind = "probation", *, pin: bool = False) -> CheckpointEntry:
        """Save the present step as the writer does, and rotate."""
        self.list.now = self.step
        self.clock += 1.0
        path = self.list.place(FOLDER, self.step)
        entry = CheckpointEntry(
            step=self.step,
            created_at=self.list.after(self.clock),
            kind=kind,
            size_bytes=1,
            path=str(path),
            pinned=pin,
        )
        self.list.add(entry)
        for surplus in self.list.surplus():
            self.list.forget(surplus)
        return entry

    def advance(self, steps: int) -> None:
        """Take steps without trouble."""
        for _ in range(steps):
            self.step += 1
            self.list.advance(self.step)

    def rollback(self, before_step: int | None = None) -> CheckpointEntry | None:
        """Roll back as the command does, if there is something to roll back to."""
        self.list.trouble(self.step)
        choices = self.list.choices(before_step)
        if not choices:
            return None
        self.step = choices[0].step
        self.list.rolled_back(self.step)
        return choices[0]

    # ── any course ────────────────────────────────────────────────────────────────────────────────────

    def go(self, act: str, number: int) -> None:
        """Take one turn, and check what it promises."""
        safe = self.safe()
        getattr(self, f"go_{act}")(number, safe)
        entries = list(self.list)
        assert len(entries) <= self.keep + 3 + self.max_pinned
        assert len({entry.path for entry in entries}) == len(entries)
        assert {e.path for e in entries if e.pinned} == set(self.pins[-self.max_pinned :])

    def go_advance(self, number: int, safe: CheckpointEntry | None) -> None:
        """Steps without trouble never cost what a rollback would take."""
        self.advance(number)
        if safe is not None:
            assert self.safe() is not None

    def go_save(self, number: int, safe: CheckpointEntry | None) -> None:
        """Nor does a save, of whatever kind, pinned or not, at whatever step."""
        pin = number % 5 == 0
        entry = self.save("suspect" if number % 3 == 0 else "probation", pin=pin)
        if pin:
            self.pins.append(entry.path)
        if safe is not None:  # its pin may have ended
            still = self.safe()
            assert still is not None
            assert (still.path, still.created_at) == (safe.path, safe.created_at)

    def go_trouble(self, number: int, safe: CheckpointEntry | None) -> None:
        """Trouble that is noticed up to two steps late leaves what was stable before it began."""
        began = self.step - number % 3
        before = [e for e in self.list if e.kind == "stable" and e.step + self.probation <= began]
        self.list.trouble(began)
        assert [e for e in self.list if e in before] == before
        if safe in before:
            assert self.safe() == safe
        for entry in self.list.choices():
            assert entry.kind == "stable" or not began - self.probation < entry.step <= self.step

    def go_rollback(self, number: int, safe: CheckpointEntry | None) -> None:
        """A rollback goes back to what was safe, which stays; all that was saved later is suspect."""
        loaded = self.rollback()
        if safe is not None:
            assert loaded == safe == self.safe()
        assert all(entry.kind == "suspect" for entry in self.list if entry.step > self.step)

    def go_back_further(self, number: int, safe: CheckpointEntry | None) -> None:
        """With an onset, nothing later than it is taken, and what is taken stays."""
        before = max(0, self.step - number * 5)
        stable = [e for e in self.list.choices(before) if e.kind == "stable"]
        loaded = self.rollback(before)
        if stable:
            assert loaded == stable[0] == self.safe()
        assert loaded is None or loaded.step <= before
        later = [entry.kind for entry in self.list if loaded is not None and entry.step > loaded.step]
        assert set(later) <= {"suspect"}

    def go_restart(self, number: int, safe: CheckpointEntry | None) -> None:
        """A new session finds the same, and resumes from what was safe."""
        found = list(self.list)
        self.list = CheckpointList(
            keep=self.keep, probation_steps=self.probation, max_pinned=self.max_pinned, now=self.step
        )
        self.list.find(reversed(found))
        assert list(self.list) == found
        assert self.safe() == safe


ACTS = [name.removeprefix("go_") for name in vars(Course) if name.startswith("go_")]


@given(
    keep=st.integers(2, 4),
    probation=st.integers(3, 12),
    turns=st.lists(st.tuples(st.sampled_from([*ACTS, "save", "advance"]), st.integers(0, 15)), max_size=60),
)
@settings(max_examples=400, deadline=None)
def test_what_a_rollback_would_take_is_never_lost(
    keep: int, probation: int, turns: list[tuple[str, int]]
) -> None:
    """Whatever a run goes through, only trouble within its probation takes away a stable checkpoint.

    The number of checkpoints is bounded, and the newest pinned ones are all there.
    """
    course = Course(keep=keep, probation_steps=probation)
    for act, number in turns:
        course.go(act, number)


def test_a_stable_checkpoint_is_not_replaced_by_a_later_save_of_its_step() -> None:
    """A snapshot of the paused run right after a rollback is kept beside the stable one of that step."""
    course = Course()
    course.save()
    course.advance(10)
    rolled_back_to = course.rollback()
    snapshot = course.save("suspect")

    assert rolled_back_to is not None
    assert [Path(entry.path).name for entry in course.list] == ["step-000000000000", "step-000000000000.2"]
    assert course.list.of_step(0) == rolled_back_to
    course.list.forget(rolled_back_to)
    assert course.list.of_step(0) == snapshot


def test_one_pin_more_ends_the_oldest() -> None:
    """Pins survive any number of saves; the bound ends the oldest, which then goes like any other."""
    course = Course(keep=2, max_pinned=2)
    for step in range(6):
        course.save("suspect", pin=step < 3)
        course.advance(1)

    assert [(entry.step, entry.pinned) for entry in course.list] == [
        (1, True),
        (2, True),
        (4, False),
        (5, False),
    ]
    assert course.list.add(course.save("suspect", pin=True)) == []


def test_unpinning_is_told_and_written_down() -> None:
    """Whoever keeps the files hears which manifest to change."""
    course = Course(max_pinned=1)
    first = course.save(pin=True)
    course.advance(1)
    second = CheckpointEntry(
        step=1, created_at=9.0, kind="probation", size_bytes=1, path="/checkpoints/b", pinned=True
    )

    assert course.list.add(second) == [first.model_copy(update={"pinned": False})]
    assert course.list.unrecorded == {first.path}
