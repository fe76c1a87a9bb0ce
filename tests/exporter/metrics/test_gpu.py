"""GPU metrics, through the real nvidia-ml-py and a fake libnvidia-ml."""

from __future__ import annotations

import ctypes
import logging
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pynvml  # type: ignore[import-untyped]
import pytest
from tests.exporter.conftest import sample, samples
from tests.exporter.metrics.fake_nvml import FakeDriver, compile_library, uuid

from trainswitch.metrics.gpu import collector as collector_module
from trainswitch.metrics.gpu.collector import OVERDUE_SECONDS, XIDS, GpuCollector
from trainswitch.metrics.gpu.visible import Card, choose
from trainswitch.metrics.registry import MetricRegistry


class Clock:
    """Monotonic seconds that only a test moves."""

    now = 100.0

    def __call__(self) -> float:
        """Return the time that the test has set."""
        return self.now


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The fake library, compiled once."""
    return compile_library(tmp_path_factory.mktemp("nvml"))


LoadLibrary = Callable[[Path | None], None]


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LoadLibrary:
    """Makes nvidia-ml-py load a library of ours, or none, whatever this machine has."""
    monkeypatch.setattr(pynvml, "nvmlLib", None)
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(collector_module, "_DRIVER", tmp_path / "no-driver")

    def load_library(path: Path | None) -> None:
        def open_library(name: str) -> ctypes.CDLL:
            assert name == "libnvidia-ml.so.1"
            if path is None:
                raise OSError(f"{name}: cannot open shared object file: No such file or directory")
            # A copy of its own for each test, as the library keeps what it has delivered.
            own = tmp_path / "own-libnvidia-ml.so.1"
            shutil.copy(path, own)
            return ctypes.CDLL(str(own))

        monkeypatch.setattr(pynvml, "CDLL", open_library)

    return load_library


@pytest.fixture
def driver(library: Path, load: LoadLibrary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeDriver:
    """A driver without cards, which nvidia-ml-py finds."""
    load(library)
    state = tmp_path / "nvml.state"
    monkeypatch.setenv("FAKE_NVML", str(state))
    return FakeDriver(state)


class Watch:
    """A collector that is driven round by round, and what a scrape sees of it."""

    def __init__(self, **arguments: int) -> None:
        self.clock = Clock()
        self.metrics = MetricRegistry({"run": "r", "rank": "0"})
        self.collector = GpuCollector(self.metrics, clock=self.clock, **arguments)

    def after(self, seconds: float) -> Watch:
        """Take a round `seconds` later."""
        self.clock.now += seconds
        self.collector.collect()
        return self

    def __call__(self, name: str, /, **labels: str) -> float | None:
        """The value of one series in a scrape now."""
        return self.metrics.registry.get_sample_value(name, {"run": "r", "rank": "0", **labels})

    def families(self) -> set[str]:
        """Names of the GPU samples in a scrape now, without those of collection health."""
        names = {name for name, _ in samples(self.metrics.render())}
        return {name for name in names if name.startswith("train_gpu") and "collect" not in name}


@pytest.fixture
def watch(driver: FakeDriver) -> Watch:
    """A collector of a single rank on the fake driver's machine; no round was taken yet."""
    return Watch()


# ── readings ──────────────────────────────────────────────────────────────────────────────────────────────


def test_a_healthy_card_is_read_in_base_units(driver: FakeDriver, watch: Watch) -> None:
    """Percent become ratios, milliwatts watts, megahertz hertz, millijoules joules."""
    driver.add("a100")
    watch.after(0)
    assert watch("train_gpu_utilization_ratio", gpu="0") == 0.98
    assert watch("train_gpu_memory_controller_utilization_ratio", gpu="0") == 0.61
    assert watch("train_gpu_memory_bytes", gpu="0", kind="used") == 73014444032
    assert watch("train_gpu_memory_bytes", gpu="0", kind="total") == 80 * 2**30
    assert watch("train_gpu_temperature_celsius", gpu="0") == 62
    assert watch("train_gpu_power_watts", gpu="0") == 387.214
    assert watch("train_gpu_power_limit_watts", gpu="0") == 400
    assert watch("train_gpu_clock_hertz", gpu="0", domain="sm") == 1.41e9
    assert watch("train_gpu_clock_hertz", gpu="0", domain="memory") == 1.593e9
    assert watch("train_gpu_energy_joules_total", gpu="0") == 48211907.345
    assert watch("train_gpu_ecc_errors_total", gpu="0", type="corrected") == 2
    assert watch("train_gpu_ecc_errors_total", gpu="0", type="uncorrected") == 0
    assert watch("train_gpu_nvlink_errors_total", gpu="0", type="replay") == 1
    info = {"gpu": "0", "uuid": uuid(0), "name": "NVIDIA A100-SXM4-80GB", "driver": "550.54.15"}
    assert watch("train_gpu_info", **info) == 1
    assert watch("train_gpu_up", gpu="0") == 1


def test_health_of_the_collection_is_apart_from_the_data(driver: FakeDriver, watch: Watch) -> None:
    """A full round is a success with a time and a duration; before the first there is nothing."""
    driver.add("t4")
    assert watch("train_gpu_collect_success") is None
    before = time.time()
    watch.after(0)
    assert watch("train_gpu_collect_success") == 1
    assert watch("train_gpu_collect_seconds") == 0
    ended = watch("train_gpu_collect_timestamp_seconds")
    assert ended is not None
    assert before <= ended <= time.time()
    assert watch("train_gpu_collect_failures_total", reason="device") == 0


def test_only_the_reasons_that_hold_the_clocks_down_are_active(driver: FakeDriver, watch: Watch) -> None:
    """train_gpu_throttle_active is one series a reason, 1 where the driver names it."""
    driver.add("h100")
    watch.after(0)
    assert watch("train_gpu_throttle_active", gpu="0", reason="sw_power_cap") == 1
    assert watch("train_gpu_throttle_active", gpu="0", reason="hw_thermal") == 0
    driver.set("0.reasons", 0x8 | 0x40)
    watch.after(1)
    assert watch("train_gpu_throttle_active", gpu="0", reason="sw_power_cap") == 0
    assert watch("train_gpu_throttle_active", gpu="0", reason="hw_slowdown") == 1
    assert watch("train_gpu_throttle_active", gpu="0", reason="hw_thermal") == 1


def test_error_counters_follow_the_driver(driver: FakeDriver, watch: Watch) -> None:
    """The driver's totals are shown as they are: what is added is an increase, a reload is a reset."""
    driver.add("a100")
    watch.after(0)
    driver.set("0.ecc.uncorrected", 3)
    driver.set("0.field.38", 12)
    watch.after(1)
    assert watch("train_gpu_ecc_errors_total", gpu="0", type="uncorrected") == 3
    assert watch("train_gpu_nvlink_errors_total", gpu="0", type="crc_flit") == 12
    driver.set("0.ecc.uncorrected", 0)
    watch.after(1)
    assert watch("train_gpu_ecc_errors_total", gpu="0", type="uncorrected") == 0


def test_what_a_card_does_not_offer_is_absent(driver: FakeDriver, watch: Watch) -> None:
    """Not supported, and an unknown error of one call, cost that series and nothing else."""
    driver.add("geforce")
    watch.after(0)
    assert watch("train_gpu_power_limit_watts", gpu="0") is None
    assert watch("train_gpu_energy_joules_total", gpu="0") is None
    absent = {"train_gpu_ecc_errors_total", "train_gpu_nvlink_errors_total", "train_gpu_xid_errors_total"}
    assert not absent & watch.families()
    assert watch("train_gpu_power_watts", gpu="0") == 342.11
    assert watch("train_gpu_clock_hertz", gpu="0", domain="memory") == 9.501e9
    assert watch("train_gpu_collect_success") == 1


def test_throttle_reasons_are_read_from_a_driver_before_535(
    driver: FakeDriver, load: LoadLibrary, tmp_path: Path
) -> None:
    """Older drivers know the same call by its former name only."""
    old = tmp_path / "old"
    old.mkdir()
    load(compile_library(old, "-DBEFORE_535"))
    driver.add("t4")
    watch = Watch().after(0)
    assert watch("train_gpu_throttle_active", gpu="0", reason="idle") == 1


# ── XID errors ────────────────────────────────────────────────────────────────────────────────────────────


def test_an_xid_is_counted_with_its_time(driver: FakeDriver, watch: Watch) -> None:
    """The known codes are there at 0 from the first round, so increase() sees the first error of each."""
    driver.add("h100")
    driver.add("h100")
    watch.after(0)
    assert {watch("train_gpu_xid_errors_total", gpu="1", xid=str(xid)) for xid in XIDS} == {0.0}
    assert watch("train_gpu_xid_timestamp_seconds", gpu="1", xid="79") is None
    before = time.time()
    driver.report_xid(1, 79)
    driver.report_xid(1, 79)
    driver.report_xid(0, 777)
    watch.after(1)
    assert watch("train_gpu_xid_errors_total", gpu="1", xid="79") == 2
    assert watch("train_gpu_xid_errors_total", gpu="0", xid="79") == 0
    assert watch("train_gpu_xid_errors_total", gpu="0", xid="777") == 1
    at = watch("train_gpu_xid_timestamp_seconds", gpu="1", xid="79")
    assert at is not None
    assert before <= at <= time.time()


def test_the_xid_of_a_lost_card_outlives_it(driver: FakeDriver, watch: Watch) -> None:
    """A card that falls off the bus says so by XID 79, which stays when the readings go."""
    driver.add("a100")
    watch.after(0)
    driver.report_xid(0, 79)
    driver.set("0.lost", 15)
    watch.after(1)
    assert watch("train_gpu_xid_errors_total", gpu="0", xid="79") == 1
    watch.after(10)
    assert watch("train_gpu_xid_errors_total", gpu="0", xid="79") == 1


# ── failures ──────────────────────────────────────────────────────────────────────────────────────────────

_LASTING = {
    "train_gpu_info",
    "train_gpu_up",
    "train_gpu_xid_errors_total",
}


@pytest.mark.parametrize("error", [15, 16, 999])
def test_a_lost_card_has_no_readings_and_the_others_go_on(
    driver: FakeDriver, watch: Watch, error: int, caplog: pytest.LogCaptureFixture
) -> None:
    """GPU is lost, reset required, or unknown errors throughout: nothing stale is shown of that card."""
    driver.add("h100")
    driver.add("h100")
    watch.after(0)
    driver.set("1.lost", error)
    driver.set("0.temperature", 77)
    watch.after(1)
    shown = {name for name, labels in samples(watch.metrics.render()) if ("gpu", "1") in labels}
    assert shown == _LASTING
    assert watch("train_gpu_up", gpu="1") == 0
    assert watch("train_gpu_up", gpu="0") == 1
    assert watch("train_gpu_temperature_celsius", gpu="0") == 77
    assert watch("train_gpu_collect_success") == 0
    assert watch("train_gpu_collect_failures_total", reason="device") == 1
    assert f"GPU 1 {uuid(1)} does not answer any more" in caplog.text
    driver.unset("1.lost")
    watch.after(1)
    assert watch("train_gpu_up", gpu="1") == 1
    assert watch("train_gpu_temperature_celsius", gpu="1") == 71
    assert watch("train_gpu_collect_success") == 1


def test_a_card_that_is_lost_half_way_through_a_round_has_no_readings(
    driver: FakeDriver, watch: Watch
) -> None:
    """What it told before it was lost is not shown, either."""
    driver.add("a100")
    watch.after(0)
    driver.set("0.energy", "!15")
    watch.after(1)
    assert watch.families() == _LASTING
    assert watch("train_gpu_up", gpu="0") == 0


def test_a_card_that_was_lost_before_the_start_is_down(driver: FakeDriver, watch: Watch) -> None:
    """It has no UUID to tell, but it is there and it is not read."""
    driver.add("a100")
    driver.add("a100")
    driver.set("1.lost", 15)
    watch.after(0)
    assert watch("train_gpu_up", gpu="0") == 1
    assert watch("train_gpu_up", gpu="1") == 0
    assert watch("train_gpu_collect_success") == 0


def test_a_card_keeps_its_label_when_one_before_it_drops_out(driver: FakeDriver, watch: Watch) -> None:
    """The driver's indexes move up; the series of the remaining cards do not change hands."""
    for temperature in (50, 60, 70):
        driver.add("a100", temperature=temperature)
    watch.after(0)
    driver.set("1.lost", 15)
    watch.after(1)
    driver.set("count", 2)
    driver.set("slot.1", 2)
    watch.after(1)
    assert watch("train_gpu_temperature_celsius", gpu="0") == 50
    assert watch("train_gpu_temperature_celsius", gpu="1") is None
    assert watch("train_gpu_temperature_celsius", gpu="2") == 70
    assert watch("train_gpu_up", gpu="1") == 0


@pytest.mark.parametrize("fatal", [1, 9, 18])
def test_a_driver_that_dies_takes_all_readings_with_it(driver: FakeDriver, watch: Watch, fatal: int) -> None:
    """The cards are down until the driver is back, which is found by opening it anew."""
    driver.add("a100")
    watch.after(0)
    driver.set("0.lost", fatal)
    driver.set("init", 9)
    watch.after(1)
    assert watch.families() == _LASTING
    assert watch("train_gpu_up", gpu="0") == 0
    assert watch("train_gpu_collect_success") == 0
    watch.after(1)
    assert watch("train_gpu_collect_failures_total", reason="driver") == 2
    driver.unset("0.lost")
    driver.unset("init")
    watch.after(60)
    assert watch("train_gpu_up", gpu="0") == 1
    assert watch("train_gpu_temperature_celsius", gpu="0") == 62


def test_nvml_shut_down_by_others_in_the_process_is_opened_again(driver: FakeDriver, watch: Watch) -> None:
    """A library that ends NVML once too often costs one round."""
    driver.add("a100")
    watch.after(0)
    pynvml.nvmlShutdown()
    watch.after(1)
    assert watch("train_gpu_collect_success") == 0
    watch.after(1)
    assert watch("train_gpu_collect_success") == 1


def test_attempts_grow_rarer_up_to_one_a_minute(load: LoadLibrary) -> None:
    """Rounds go on each second, but what fails is tried again after 1, 2, 4 … at most 60 seconds."""
    load(None)
    watch = Watch().after(0)
    tried = []
    for second in range(1, 400):
        before = watch("train_gpu_collect_failures_total", reason="driver")
        watch.after(1)
        if watch("train_gpu_collect_failures_total", reason="driver") != before:
            tried.append(second)
    assert tried == [1, 3, 7, 15, 31, 63, 123, 183, 243, 303, 363]


def test_after_a_recovery_the_next_failure_is_tried_again_at_once(driver: FakeDriver, watch: Watch) -> None:
    """However many cards fail together, and however long the last outage was, the first wait is a second."""
    driver.add("a100")
    driver.add("a100")
    watch.after(0)
    for outage in (60, 1):
        driver.set("0.lost", 15)
        driver.set("1.lost", 15)
        for _ in range(outage):
            watch.after(1)
        driver.unset("0.lost")
        driver.unset("1.lost")
        watch.after(1 if outage == 1 else 60)
        assert watch("train_gpu_collect_success") == 1


def test_a_machine_without_a_driver_has_no_cards_and_no_alarm(
    load: LoadLibrary, caplog: pytest.LogCaptureFixture
) -> None:
    """Collection fails visibly; no card is said to be down, since there is none; nobody is warned."""
    load(None)
    caplog.set_level(logging.INFO, "trainswitch")
    watch = Watch().after(0)
    assert watch("train_gpu_collect_success") == 0
    assert watch("train_gpu_collect_failures_total", reason="driver") == 1
    assert watch.families() == set()
    assert [record.levelname for record in caplog.records] == ["INFO"]
    assert "NVML Shared Library Not Found" in caplog.text


@pytest.mark.parametrize(("with_driver", "level"), [(True, "WARNING"), (False, "INFO")])
def test_without_nvidia_ml_py_there_is_one_sentence(
    driver: FakeDriver,
    watch: Watch,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    with_driver: bool,
    level: str,
) -> None:
    """It says what to install, once, and as a warning only where NVIDIA's driver is there."""
    caplog.set_level(logging.INFO, "trainswitch")
    monkeypatch.delitem(sys.modules, "trainswitch.metrics.gpu.nvml", raising=False)
    monkeypatch.setitem(sys.modules, "pynvml", None)
    if with_driver:
        (tmp_path / "no-driver").touch()
    watch.after(0).after(1).after(2)
    assert watch("train_gpu_collect_success") == 0
    assert watch("train_gpu_collect_failures_total", reason="package") == 3
    assert watch.families() == set()
    assert [record.levelname for record in caplog.records] == [level]
    assert "install nvidia-ml-py" in caplog.text


def test_a_driver_without_cards_is_not_a_success(driver: FakeDriver, watch: Watch) -> None:
    """NVML works and knows no card: that is said, and a card that comes later is found."""
    watch.after(0)
    assert watch("train_gpu_collect_success") == 0
    assert watch("train_gpu_collect_failures_total", reason="no_device") == 1
    assert watch.families() == set()
    driver.add("t4")
    watch.after(1)
    assert watch("train_gpu_up", gpu="0") == 1


def test_a_call_that_never_returns_leaves_nothing_stale(
    driver: FakeDriver, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Readings of an overdue round are withdrawn, scrapes go on, and the end does not wait for the driver."""
    monkeypatch.setattr(collector_module, "_JOIN_SECONDS", 0.05)
    driver.add("a100")
    watch = Watch()
    watch.after(0)
    driver.set("hang", 1)
    watch.collector.start()
    assert watch("train_gpu_temperature_celsius", gpu="0") == 62
    watch.clock.now += OVERDUE_SECONDS + 1
    assert watch.families() == _LASTING
    assert watch("train_gpu_up", gpu="0") == 0
    assert watch("train_gpu_collect_success") == 0
    watch.collector.close()
    assert "does not return from a call" in caplog.text
    driver.unset("hang")
    for thread in threading.enumerate():
        if thread.name == "trainswitch-gpu":
            thread.join(timeout=10)
    assert watch("train_gpu_collect_success") is None


# ── which cards ───────────────────────────────────────────────────────────────────────────────────────────

_CARDS = [Card(str(index), uuid(index), "A100") for index in range(4)]


@pytest.mark.parametrize(
    ("visible", "local_rank", "local_ranks", "expected"),
    [
        (None, 0, 1, "0123"),  # one process on the machine drives them all
        (None, 2, 4, "2"),
        (None, 1, 2, "13"),
        (None, 5, 8, ""),
        ("2,3", 0, 1, "23"),
        ("2,3", 1, 2, "3"),
        ("3, 1", 0, 2, "3"),
        ("3", 5, 8, "3"),  # each rank has a list of its own
        ("1,-1,2", 0, 1, "1"),
        ("", 0, 1, ""),
        ("-1", 0, 1, ""),
        ("NoDevFiles", 0, 1, ""),
        ("0,9,1", 0, 1, "0"),
        (f"{uuid(3)},{uuid(0)}", 1, 2, "0"),
        ("GPU-00000002", 0, 1, "2"),  # abbreviated
        ("GPU-0000", 0, 1, ""),  # abbreviated too far
        ("MIG-1", 0, 1, "3"),
        ("MIG-2", 0, 1, ""),
    ],
)
def test_a_rank_watches_its_own_cards(
    visible: str | None, local_rank: int, local_ranks: int, expected: str
) -> None:
    """CUDA_VISIBLE_DEVICES is read as CUDA reads it, and its cards are dealt out to the local ranks."""
    parents = {"MIG-1": uuid(3)}
    chosen = choose(_CARDS, visible, local_rank, local_ranks, parents.get)
    assert "".join(card.gpu for card in chosen) == expected


def test_an_entry_that_is_no_card_is_named(caplog: pytest.LogCaptureFixture) -> None:
    """CUDA hides it and what follows in silence; we say so."""
    choose(_CARDS, "0,7", 0, 1, lambda _: None)
    assert "'7' is no card of this machine" in caplog.text


@pytest.mark.parametrize("visible", ["1", uuid(1), "MIG-7a1f", f"MIG-{uuid(1)}/1/0"])
def test_only_the_rank_s_card_is_read(
    driver: FakeDriver, monkeypatch: pytest.MonkeyPatch, visible: str
) -> None:
    """Of three cards the visible one is shown, with the driver's index; a MIG instance is its card."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    for _ in range(3):
        driver.add("a100")
    driver.set("1.mig", "MIG-7a1f")
    watch = Watch().after(0)
    ups = {labels for name, labels in samples(watch.metrics.render()) if name == "train_gpu_up"}
    assert ups == {frozenset({("gpu", "1")})}


def test_a_rank_without_a_card_says_nothing(driver: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hiding all cards is a decision, not a failure: no series, and NVML is given back."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    driver.add("a100")
    watch = Watch().after(0)
    assert not [name for name, _ in samples(watch.metrics.render()) if name.startswith("train_gpu")]
    with pytest.raises(pynvml.NVMLError):
        pynvml.nvmlDeviceGetCount()


# ── threads and processes ─────────────────────────────────────────────────────────────────────────────────


def test_the_thread_collects_by_itself_and_ends(driver: FakeDriver) -> None:
    """start() returns at once; close() ends the thread, takes the samples away and gives NVML back."""
    driver.add("a100")
    metrics = MetricRegistry({"run": "r", "rank": "0"})
    collector = GpuCollector(metrics)
    collector.start()
    deadline = time.monotonic() + 30
    while sample(metrics.render(), "train_gpu_collect_success") != 1:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    collector.close()
    assert not [name for name, _ in samples(metrics.render()) if name.startswith("train_gpu")]
    assert "trainswitch-gpu" not in [thread.name for thread in threading.enumerate()]
    with pytest.raises(pynvml.NVMLError):
        pynvml.nvmlDeviceGetCount()


def test_a_scrape_sees_a_round_as_a_whole(driver: FakeDriver, watch: Watch) -> None:
    """While a card comes and goes, each scrape shows all of its readings or none."""
    driver.add("a100")
    watch.after(0)
    whole = watch.families()
    seen = set()
    collecting = threading.Event()

    def collect() -> None:
        for _ in range(30):
            driver.set("0.lost", 15)
            watch.after(60)
            driver.unset("0.lost")
            watch.after(60)
        collecting.set()

    thread = threading.Thread(target=collect)
    thread.start()
    while not collecting.is_set():
        seen.add(frozenset(watch.families()))
    thread.join()
    assert seen <= {frozenset(whole), frozenset(_LASTING)}


def test_nvidia_ml_py_finds_the_library_by_its_own_means(driver: FakeDriver, library: Path) -> None:
    """In a fresh process, nothing patched, start_collectors() shows the card on the loader's path."""
    driver.add("h100")
    program = """
import os, time
from trainswitch.metrics.collectors import start_collectors
from trainswitch.metrics.registry import MetricRegistry
metrics = MetricRegistry({"run": "r", "rank": "0"})
collectors = start_collectors(metrics, {"pid": os.getpid(), "local_rank": 0, "world_size": 1})
deadline = time.monotonic() + 30
while b"train_gpu_up" not in metrics.render() and time.monotonic() < deadline:
    time.sleep(0.01)
print(metrics.render().decode())
collectors.close()
"""
    environment = {**os.environ, "LD_LIBRARY_PATH": str(library.parent), "FAKE_NVML": str(driver.state)}
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    text = done.stdout.encode()
    assert sample(text, "train_gpu_power_watts", gpu="0") == 698.53
    assert (sample(text, "train_process_resident_memory_bytes") or 0) > 2**20
    assert (sample(text, "train_host_memory_bytes", kind="total") or 0) > 2**20
    assert done.stderr == ""
