"""Loading one checkpoint on every rank at the start of a session, or none anywhere."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from trainswitch.errors import CheckpointError
from trainswitch.intervention.file_group import FileGroup
from trainswitch.intervention.rank_group import RankGroup, Word

if TYPE_CHECKING:
    from trainswitch.intervention.actions import Interventions


def restore_together(
    group: RankGroup | FileGroup, interventions: Interventions, step: int | None
) -> int | None:
    """Load the checkpoint that rank 0 chooses on all ranks; called by each of them.

    As in the meeting for a command, every rank first tries whatever could fail, and all say whether they
    could, before any rank changes anything.

    Args:
        group: of all ranks.
        interventions: of this rank.
        step: of the checkpoint, the same on all ranks; None leaves the choice to rank 0.

    Returns:
        The step that the run goes on from; None where there is no checkpoint.

    Raises:
        TrainswitchError: on rank 0, why none can be loaded there.
        CheckpointError: a rank cannot load it, so none has; or one failed after others had.
        AgreementLost: a rank is gone.
    """
    chosen, trouble = _chosen_by_rank_0(group, interventions, step)
    if chosen is None:
        return None
    if group.rank > 0:
        if step != chosen["asked"]:
            trouble = f"it asks for step {step} and rank 0 for {chosen['asked']}: ask alike."
        else:
            trouble = _sentence(lambda: interventions.prepare_restore(step, chosen["checkpoint"]))
    _all_could(group, trouble, "No rank has changed anything.", interventions)
    trouble = _sentence(lambda: interventions.restore(step))
    _all_could(group, trouble, "The ranks may differ now: start them all again.", interventions)
    return interventions.step


def _chosen_by_rank_0(
    group: RankGroup | FileGroup, interventions: Interventions, step: int | None
) -> tuple[dict[str, Any] | None, str]:
    """Return rank 0's choice on every rank; None where there is nothing to load."""
    if group.rank > 0:
        said = json.loads(group.share(None))
        if said["trouble"]:
            raise CheckpointError("state", f"Rank 0: {said['trouble']} No rank has changed anything.")
        return said["chosen"], ""
    try:
        checkpoint = interventions.prepare_restore(step, {})
    except Exception as error:
        group.share(json.dumps({"trouble": str(error)}).encode())
        raise
    chosen = None if checkpoint is None else {"checkpoint": checkpoint, "asked": step}
    group.share(json.dumps({"trouble": "", "chosen": chosen}).encode())
    return chosen, ""


def _all_could(
    group: RankGroup | FileGroup, trouble: str, outcome: str, interventions: Interventions
) -> None:
    words = group.gather(Word(not trouble, trouble))
    objections = [f"Rank {rank}: {word.text}" for rank, word in enumerate(words) if not word.ok]
    if objections:
        interventions.forget_prepared()
        raise CheckpointError("state", f"{' '.join(objections)} {outcome}")


def _sentence(attempt: Callable[[], object]) -> str:
    """Return why an attempt failed; empty where it did not."""
    try:
        attempt()
    except Exception as error:  # noqa: BLE001 - whatever it is, it is this rank's word
        return str(error) or type(error).__name__
    return ""
