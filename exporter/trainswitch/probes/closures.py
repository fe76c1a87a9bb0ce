"""When an optimizer's gradients are those of the step: at once, or once its closure has worked them out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def after_closure(
    args: tuple[Any, ...], kwargs: dict[str, Any], then: Callable[[], None]
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """Call `then` where the gradients are complete; for an optimizer's pre-step hook.

    ``optimizer.step(closure)`` computes them in `closure`, after every pre-step hook. `then` is called after
    each evaluation of the closure, or at once where there is none.

    Args:
        args: positional arguments of the step, the optimizer first.
        kwargs: keyword arguments of the step.
        then: must not raise.

    Returns:
        What the hook has to return: None, or the arguments with another closure in them.
    """
    closure = kwargs.get("closure") if "closure" in kwargs else args[1] if len(args) > 1 else None
    if not callable(closure):
        then()
        return None

    def evaluated() -> Any:
        value = closure()
        with torch.no_grad():
            then()
        return value

    if "closure" in kwargs:
        return args, {**kwargs, "closure": evaluated}
    return (args[0], evaluated, *args[2:]), kwargs
