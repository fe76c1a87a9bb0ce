"""Which cards belong to a rank."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import NamedTuple

logger = logging.getLogger("trainswitch")


class Card(NamedTuple):
    """One card, by names that stay its own when others drop out."""

    gpu: str
    """Index in the driver's order when it was first seen; the label of its series."""
    uuid: str
    """As ``nvidia-smi -L`` prints it; empty where the card was lost before it was ever read."""
    name: str


def choose(
    cards: Sequence[Card],
    visible: str | None,
    local_rank: int,
    local_ranks: int,
    parent_of: Callable[[str], str | None],
) -> list[Card]:
    """Return the cards that this rank watches.

    The visible cards are dealt out to the ranks of the machine in turn: with as many cards as ranks, rank n
    watches visible card n, as training frameworks place it; a single rank watches all. A list of one is the
    rank's own, as some launchers give each rank its own list.

    Args:
        cards: of the machine, in the driver's order.
        visible: value of ``CUDA_VISIBLE_DEVICES``; None where it is not set, which means all cards.
        local_rank: on this machine.
        local_ranks: number of ranks on this machine, at least 1.
        parent_of: gives the UUID of the card that a MIG instance's UUID is a part of.
    """
    chosen = list(cards) if visible is None else _named(cards, visible, parent_of)
    if visible is not None and len(chosen) == 1:
        return chosen
    return chosen[local_rank::local_ranks]


def _named(cards: Sequence[Card], visible: str, parent_of: Callable[[str], str | None]) -> list[Card]:
    """Read a ``CUDA_VISIBLE_DEVICES`` as CUDA does: entries after the first unknown one do not count."""
    chosen: list[Card] = []
    for entry in (part.strip() for part in visible.split(",")):
        card = _find(cards, entry, parent_of)
        if card is None:
            if entry not in ("", "-1", "NoDevFiles"):  # what people write to hide all cards
                logger.warning(
                    "CUDA_VISIBLE_DEVICES=%s: %r is no card of this machine; it and what follows is hidden.",
                    visible,
                    entry,
                )
            break
        if card not in chosen:  # two MIG instances of one card
            chosen.append(card)
    return chosen


def _find(cards: Sequence[Card], entry: str, parent_of: Callable[[str], str | None]) -> Card | None:
    if entry.isdecimal():
        return cards[int(entry)] if int(entry) < len(cards) else None
    uuid = (parent_of(entry) or "") if entry.startswith("MIG-") else entry
    if not uuid.startswith("GPU-"):
        return None
    matching = [card for card in cards if card.uuid.startswith(uuid)]  # CUDA takes abbreviations, if unique
    return matching[0] if len(matching) == 1 else None
