"""The random-number generators of this process: their state, and how it is put back."""

from __future__ import annotations

import random
import sys
from typing import Any


def rng_state() -> dict[str, Any]:
    """Return the state of every random-number generator of this process."""
    import torch

    state: dict[str, Any] = {"python": random.getstate(), "torch": torch.get_rng_state(), "cuda": []}
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call] # asking an unused CUDA would start it
        state["cuda"] = torch.cuda.get_rng_state_all()
    if "numpy" in sys.modules:
        numpy = dict(sys.modules["numpy"].random.get_state(legacy=False))
        numpy["state"] = {
            key: getattr(item, "tolist", lambda item=item: item)() for key, item in numpy["state"].items()
        }
        state["numpy"] = numpy
    return state


def set_rng_state(saved: dict[str, Any]) -> None:
    """Put back what `rng_state` returned."""
    import torch

    random.setstate(saved["python"])
    if "numpy" in saved:
        import numpy as np

        np.random.set_state(saved["numpy"])
    torch.set_rng_state(saved["torch"])
    for device, state in enumerate(saved["cuda"]):
        torch.cuda.set_rng_state(state, device)
