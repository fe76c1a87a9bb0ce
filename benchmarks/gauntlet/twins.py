"""The runs beside the protected ones: without a fault, and without protection. Nobody watches; full speed."""

from __future__ import annotations

import concurrent.futures
import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence

from benchmarks.gauntlet.launcher import Launcher
from benchmarks.gauntlet.spec import Diary, Spec
from benchmarks.gauntlet.verdict import End, end_of

_TICK_S = 0.1
_HUNG_S, _LONGEST_START_S = 60.0, 120.0
_IDLE = 1
"""More at once than there are CPUs, because those that hang need none."""


def train_twins(specs: Sequence[Spec], on_progress: Callable[[int], None]) -> dict[str, End]:
    """Train runs that nobody watches, as many at once as there are CPUs, and return how each ended.

    What its folder says to be over is not trained again. `on_progress` is told how many are over.
    """
    ends: dict[str, End] = {}
    leaving = threading.Event()
    with _pool(leaving) as pool:
        futures = {pool.submit(_train, spec, leaving): spec for spec in specs}
        for future in concurrent.futures.as_completed(futures):
            ends[futures[future].run] = future.result()
            on_progress(len(ends))
    return ends


@contextlib.contextmanager
def _pool(leaving: threading.Event) -> Iterator[concurrent.futures.ThreadPoolExecutor]:
    """Give a pool whose trainings end when it is left, however that is."""
    with concurrent.futures.ThreadPoolExecutor(len(os.sched_getaffinity(0)) + _IDLE) as pool:
        try:
            yield pool
        except BaseException:
            leaving.set()
            pool.shutdown(cancel_futures=True)
            raise


def _train(spec: Spec, leaving: threading.Event) -> End:
    diary = Diary(spec.folder)
    if diary.result is None and not diary.events("over"):
        launcher = Launcher(spec)
        try:
            launcher.start()
            while not launcher.over and not leaving.is_set():
                time.sleep(_TICK_S)
                launcher.look()
                longest = _HUNG_S if diary.executed else _LONGEST_START_S
                if spec.fault is not None and launcher.idle_seconds() > longest:
                    launcher.give_up("hung")
        finally:
            launcher.kill()
    return end_of(spec, diary)
