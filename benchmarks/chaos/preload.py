"""What the processes under test are forked from: everything imported, nothing started.

Importing it changes this process's clock, so only the fork server does. What trainswitch and PyTorch import
when they are first used is named here, because each of hundreds of trainers would import it anew.
"""

from __future__ import annotations

from benchmarks.chaos import clock

clock.install()

import torch._dynamo  # noqa: E402, F401 - the clock has to be there first, as below; an optimizer imports this

import benchmarks.chaos.programs  # noqa: E402, F401
import trainswitch.intervention.checkpoints  # noqa: E402
import trainswitch.intervention.learning_rate  # noqa: E402
import trainswitch.intervention.training_state  # noqa: E402
import trainswitch.probes.model  # noqa: E402, F401
import trainswitch_controller.serving  # noqa: E402, F401
