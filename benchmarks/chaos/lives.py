"""What one incarnation of a trainer did, read from the effect log."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from benchmarks.chaos.witness import Seen, Sight

PRIMES = (2, 3, 5, 7, 11, 13)
"""One over each of these is a factor of policy.yml."""
OTHER = 0
"""Stands for whatever is in a learning rate besides these."""


class Life:
    """One incarnation, from its first record to its last."""

    def __init__(self, number: int, sights: Sequence[Sight]) -> None:
        self.number = number
        self.pid = sights[0].pid
        self.moved = [sight for sight in sights if sight.seen is Seen.MOVED]
        # What was loaded or copied before the first step belongs to the restart.
        began = next((at for at, sight in enumerate(sights) if sight.seen is Seen.BEGAN), len(sights))
        after = sights[began:]
        self.loads = [sight.step for sight in after if sight.seen is Seen.LOADED]
        """Steps at which it rolled back."""
        self.captures = {sight.step for sight in after if sight.seen is Seen.CAPTURED}
        """Steps whose state it copied."""
        self.saves = sum(
            # A rollback copies the state, too, right before it loads.
            sight.seen is Seen.CAPTURED and (at + 1 == len(after) or after[at + 1].seen is Seen.MOVED)
            for at, sight in enumerate(after)
        )
        """How many checkpoints it began."""

    def exponents(self, at: int) -> dict[int, int]:
        """Return how often the factor of each prime, or `OTHER`, is in the rate of movement number `at`."""
        inverse = 1.0 / self.moved[at].value
        rest = round(inverse)
        exact = abs(inverse - rest) < 1e-6 * inverse
        found = dict.fromkeys(PRIMES, 0)
        for prime in PRIMES:
            while rest and rest % prime == 0:
                rest //= prime
                found[prime] += 1
        return found if rest == 1 and exact else {**found, OTHER: 1}

    def rises(self, prime: int, step: int) -> bool | None:
        """Return whether the prime's factor comes in with the movement after `step`; None: there is none."""
        for at in range(1, len(self.moved)):
            # Where a rollback was carried out at the same boundary, `step` is that of one of the two sides.
            here = step in {self.moved[at - 1].step, self.moved[at].step - 1}
            if here and self.exponents(at)[prime] > self.exponents(at - 1)[prime]:
                return True
        return None if self.moved and self.moved[-1].step == step else False

    def reduced(self, prime: int) -> bool:
        """Return whether the factor came in during this life, and not with a checkpoint."""
        return bool(self.moved) and self.exponents(-1)[prime] > self.exponents(0)[prime]


def lives_of(sights: Iterable[Sight]) -> list[Life]:
    """Return the incarnations of a run in their order."""
    by_number: dict[int, list[Sight]] = defaultdict(list)
    for sight in sights:
        by_number[sight.incarnation].append(sight)
    return [Life(number, own) for number, own in sorted(by_number.items())]
