"""The records that travel from the training loop to the aggregator, and their fixed binary form.

Everything the aggregator learns, it learns from these: that is what lets it run in the trainer or beside it.
One slot of the ring holds one record in `SLOT_BYTES` bytes:

    u64 sequence | u16 kind | u16 present | u32 label length | i64 step | f64 time |
    18 × f64 values | 64 bytes label | u64 sequence

`present` has a bit for each of the first 16 values that is there, because a loss of NaN and no loss are two
things. The sequence stands at both ends, so that a reader can tell a slot that is being overwritten.
"""

from __future__ import annotations

import enum
import struct
from typing import NamedTuple

VALUES = 18
LABEL_BYTES = 64
SLOT = struct.Struct(f"<QHHIqd{VALUES}d{LABEL_BYTES}sQ8x")
SLOT_BYTES = SLOT.size

LEARNING_RATES_INLINE = 7
"""Learning rates that fit into a step's own record; further groups follow as `Kind.LEARNING_RATE`."""


class Kind(enum.IntEnum):
    """What a record says, and so what its values and label mean."""

    STEP = 1
    """A step ended. Values: see `Value`; label: reason for a skipped update, or empty."""
    LEARNING_RATE = 2
    """Values: group, learning rate."""
    STATE = 3
    """The run's state changed; label: the new state."""
    PHASE = 4
    """Time was spent outside training; label: phase; values: seconds."""
    EVALUATION = 5
    """Label: metric; values: value; step: the last one before it."""
    CHECKPOINT = 6
    """A checkpoint is the newest of its kind; label: kind; values: step, Unix seconds."""
    CHECKPOINT_WRITTEN = 7
    """Values: seconds."""
    CHECKPOINT_FAILED = 8
    """Label: reason."""
    COMMAND = 9
    """A command was answered; label: action; values: seconds since its issue, index of the result in
    `RESULTS`."""
    CONTROL_ERROR = 10
    """Label: reason."""
    CONTROL_READ = 11
    """The control folder was polled."""
    RESTORED = 12
    """A checkpoint was loaded, by a rollback or at a resumption; step: the one that the run goes on from."""
    ACTION = 13
    """The training script has an action of its own; label: its name."""
    LAYERS = 20
    """Values of consecutive layers; label: one of `LAYER_SIGNALS`; values: index of the first layer in the
    list of names in the ring's description, then up to `LAYERS_INLINE` values, absent where not measured."""
    CHECKSUM = 21
    """Values: checksum of the weights after the step."""
    MEMORY = 23
    """Values: bytes on the rank's device in the order of `MEMORY_KINDS`, then allocation retries and
    out-of-memory errors of the process."""
    NONFINITE = 22
    """Something besides loss and gradient norm was not finite; label: source."""
    GUARD = 24
    """Values: 1 while steps on non-finite gradients are skipped, 0 from when they are not."""
    COLLECTIVE = 30
    """A collective operation ended; label: one of `COLLECTIVES`; values: seconds."""
    COLLECTIVE_WAITING = 31
    """Label: one of `COLLECTIVES`; values: Unix time since which it is waited for, 0 when it is no more."""


class Value(enum.IntEnum):
    """Index of each value in a `Kind.STEP` record."""

    LOSS = 0
    GRAD_NORM = 1
    STEP_SECONDS = 2
    DATA_WAIT_SECONDS = 3
    SAMPLES = 4
    TOKENS = 5
    EPOCH = 6
    LOSS_SCALE = 7
    CLIPPED = 8
    OVERHEAD_SECONDS = 9
    LEARNING_RATES = 10
    """How many learning rates follow."""


FIRST_LEARNING_RATE = Value.LEARNING_RATES + 1

COLLECTIVES = (
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "broadcast",
    "reduce",
    "gather",
    "scatter",
    "barrier",
    "send",
    "recv",
    "other",
)
"""Operations of torch.distributed, the labels of `Kind.COLLECTIVE`."""
MEMORY_KINDS = ("allocated", "reserved", "peak", "capacity")
"""What the first values of `Kind.MEMORY` are."""
LAYER_SIGNALS = ("grad_norm", "weight_norm", "update_ratio", "inactive_ratio")
"""Labels of `Kind.LAYERS`. The last one's names are under ``activations`` in the ring's description, the
others' under ``layers``."""
LAYERS_INLINE = 15
"""Values of layers in one record: `present` has a bit for each, and for the index."""


class Record(NamedTuple):
    """One record, decoded."""

    kind: int
    step: int
    time: float
    """Unix seconds."""
    values: tuple[float, ...]
    present: int
    label: str

    def get(self, index: int) -> float | None:
        """Return value `index`, or None where the writer had none."""
        return self.values[index] if self.present >> index & 1 else None


def decode(slot: bytes, sequence: int) -> Record | None:
    """Decode one slot; None unless it holds exactly the record of `sequence`."""
    first, kind, present, length, step, time, *rest = SLOT.unpack(slot)
    if first != sequence or rest[-1] != sequence:
        return None
    label = rest[VALUES][:length].decode("utf-8", "replace")
    return Record(kind, step, time, tuple(rest[:VALUES]), present, label)
