"""One transaction of the journal with everything that its work needs."""

from __future__ import annotations

import dataclasses

from sqlalchemy.orm import Session

from trainswitch.errors import ControlFileError
from trainswitch.intervention.control_file import StatusFile
from trainswitch_controller import runs
from trainswitch_controller.control_folder import ControlFolder
from trainswitch_controller.policy import Policy
from trainswitch_controller.records import CommandRecord, CommandState, RecoveryRecord


@dataclasses.dataclass
class Unit:
    """One transaction and what its work needs: the policy, the control folder, the time."""

    session: Session
    policy: Policy
    control_dir: ControlFolder
    now: float
    changes: list[tuple[CommandRecord, CommandState]] = dataclasses.field(default_factory=list)
    """Each command with each state it entered, in order."""
    recoveries: list[RecoveryRecord] = dataclasses.field(default_factory=list)
    """What was found to have come of interventions."""

    def enter(self, command: CommandRecord, state: CommandState) -> None:
        """Put `command` into `state`."""
        command.state = state
        self.changes.append((command, state))

    def note(self, recovery: RecoveryRecord) -> None:
        """Add what came of an intervention."""
        self.session.add(recovery)
        self.recoveries.append(recovery)

    def status(self, run: str) -> StatusFile | None:
        """Return what the trainer of `run` said last; None where it said nothing that can be used."""
        try:
            return runs.load_status(self.control_dir, run)
        except ControlFileError:  # the dispatcher reports it
            return None
