"""NVML through nvidia-ml-py, between an opening and a close; the only module that knows NVML's names.

Needs the extra ``gpu``: importing it without nvidia-ml-py is an ImportError.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable, Iterator
from typing import Any

import pynvml  # type: ignore[import-untyped]
from pynvml import NVMLError

from trainswitch.metrics.catalogue import NVLINK_ERRORS, THROTTLE_REASONS
from trainswitch.metrics.gpu.visible import Card
from trainswitch.metrics.registry import Reading

_MEGAHERTZ = 1e6
_EVENTS_A_ROUND = 256
_EVENT_WAIT_MILLISECONDS = 1

# Bits of nvmlClocksEventReasons in nvml.h, which are bits 0 to 8 in the order of THROTTLE_REASONS.
_THROTTLE_BITS = tuple((reason, 1 << bit) for bit, reason in enumerate(THROTTLE_REASONS))

# The driver adds the links up; what newer NVLink generations count for each link alone is left out.
_NVLINK_FIELDS = dict(
    zip(
        NVLINK_ERRORS,
        (
            pynvml.NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL,
            pynvml.NVML_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL,
            pynvml.NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL,
            pynvml.NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL,
            pynvml.NVML_FI_DEV_NVLINK_ECC_DATA_ERROR_COUNT_TOTAL,
        ),
        strict=True,
    )
)
_VALUE_MEMBERS = {
    pynvml.NVML_VALUE_TYPE_DOUBLE: "dVal",
    pynvml.NVML_VALUE_TYPE_UNSIGNED_INT: "uiVal",
    pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG: "ulVal",
    pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG: "ullVal",
    pynvml.NVML_VALUE_TYPE_SIGNED_LONG_LONG: "sllVal",
}

_CARD_IS_GONE = (pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_RESET_REQUIRED)
_NVML_IS_GONE = (
    pynvml.NVML_ERROR_UNINITIALIZED,
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED,
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH,
)


class CardLost(Exception):
    """A card does not answer; never leaves this package."""


class Session:
    """NVML as of one initialisation. Not for several threads at once."""

    def __init__(self) -> None:
        """Initialise NVML.

        Raises:
            NVMLError: there is no driver, or it does not work.
        """
        pynvml.nvmlInit()
        self._handles: dict[Card, Any] = {}
        self._events: Any = None
        self._gpu_of: dict[int | None, str] = {}
        """From a handle's address to the card's label, for the cards whose events are heard."""
        self.driver = str(_optional(pynvml.nvmlSystemGetDriverVersion) or "")

    def close(self) -> None:
        """Give NVML back; it stays initialised for others in this process."""
        with contextlib.suppress(NVMLError):
            if self._events is not None:
                pynvml.nvmlEventSetFree(self._events)
        with contextlib.suppress(NVMLError):
            pynvml.nvmlShutdown()

    def cards(self) -> list[Card]:
        """Return all cards of the machine, in the driver's order.

        Raises:
            NVMLError: the driver does not work.
        """
        return [self._identify(index) for index in range(pynvml.nvmlDeviceGetCount())]

    def _identify(self, index: int) -> Card:
        try:
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            return Card(str(index), pynvml.nvmlDeviceGetUUID(handle), pynvml.nvmlDeviceGetName(handle))
        except NVMLError:
            return Card(str(index), "", "")  # lost already: it is there, and it cannot be read

    def parent_of(self, mig: str) -> str | None:
        """Return the UUID of the card that a MIG instance is a part of, or None where there is none such."""
        if mig.startswith("MIG-GPU-"):  # the older form: MIG-<UUID of the card>/<instance>/<instance>
            return mig.removeprefix("MIG-").partition("/")[0]
        try:
            instance = pynvml.nvmlDeviceGetHandleByUUID(mig)
            card = pynvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(instance)
            return str(pynvml.nvmlDeviceGetUUID(card))
        except NVMLError:
            return None

    def attach(self, card: Card) -> None:
        """Begin to read a card and to hear of its errors.

        Raises:
            CardLost: it cannot be reached.
        """
        try:
            # By UUID: when a card drops out, the indexes of those behind it move up.
            handle = (
                pynvml.nvmlDeviceGetHandleByUUID(card.uuid)
                if card.uuid
                else pynvml.nvmlDeviceGetHandleByIndex(int(card.gpu))
            )
        except NVMLError as error:
            raise CardLost(str(error)) from error
        self._handles[card] = handle
        try:
            if self._events is None:
                self._events = pynvml.nvmlEventSetCreate()
            pynvml.nvmlDeviceRegisterEvents(handle, pynvml.nvmlEventTypeXidCriticalError, self._events)
        except NVMLError:
            return  # not on this platform: the card has no XID series
        self._gpu_of[_address(handle)] = card.gpu

    def attached(self, card: Card) -> bool:
        """Whether the card is being read."""
        return card in self._handles

    def hears(self, card: Card) -> bool:
        """Whether XID errors of the card would be seen."""
        return card.gpu in self._gpu_of.values()

    def events(self) -> Iterator[tuple[str, int]]:
        """Yield label of the card and code of each XID error since the last call.

        Raises:
            NVMLError: NVML is not usable any more.
        """
        for _ in range(_EVENTS_A_ROUND if self._gpu_of else 0):
            try:
                event = pynvml.nvmlEventSetWait_v2(self._events, _EVENT_WAIT_MILLISECONDS)
            except NVMLError as error:
                if error.value in _NVML_IS_GONE:
                    raise
                return  # nothing more, or a card was lost: reading it will tell
            if event.eventType == pynvml.nvmlEventTypeXidCriticalError:
                yield self._gpu_of.get(_address(event.device), "unknown"), int(event.eventData)

    def read(self, card: Card) -> list[Reading]:
        """Return what the card tells now; what it does not offer is left out.

        Raises:
            CardLost: it does not answer any more; it is detached, and the others go on.
            NVMLError: NVML is not usable any more.
        """
        handle = self._handles[card]
        readings: list[Reading] = []
        refused: NVMLError | None = None
        for read in _FIELDS:
            try:
                readings.extend(
                    Reading(name, (card.gpu, *labels), value) for name, labels, value in read(handle)
                )
            except NVMLError as error:
                if error.value in _NVML_IS_GONE:
                    raise
                refused = error
                if error.value in _CARD_IS_GONE:
                    readings.clear()
                    break
        if not readings:  # a driver that is going down answers everything with an unknown error
            del self._handles[card]
            raise CardLost(str(refused))
        return readings


_Field = Iterator[tuple[str, tuple[str, ...], float]]


def _utilization(handle: Any) -> _Field:
    rates = pynvml.nvmlDeviceGetUtilizationRates(handle)  # percent
    yield "train_gpu_utilization_ratio", (), rates.gpu / 100
    yield "train_gpu_memory_controller_utilization_ratio", (), rates.memory / 100


def _memory(handle: Any) -> _Field:
    memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
    yield "train_gpu_memory_bytes", ("used",), memory.used
    yield "train_gpu_memory_bytes", ("total",), memory.total


def _temperature(handle: Any) -> _Field:
    value = _first(
        ("nvmlDeviceGetTemperature", "nvmlDeviceGetTemperatureV"), handle, pynvml.NVML_TEMPERATURE_GPU
    )
    yield "train_gpu_temperature_celsius", (), value


def _power(handle: Any) -> _Field:
    yield "train_gpu_power_watts", (), pynvml.nvmlDeviceGetPowerUsage(handle) / 1000


def _power_limit(handle: Any) -> _Field:
    yield "train_gpu_power_limit_watts", (), pynvml.nvmlDeviceGetEnforcedPowerLimit(handle) / 1000


def _sm_clock(handle: Any) -> _Field:
    clock = pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM)
    yield "train_gpu_clock_hertz", ("sm",), clock * _MEGAHERTZ


def _memory_clock(handle: Any) -> _Field:
    clock = pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_MEM)
    yield "train_gpu_clock_hertz", ("memory",), clock * _MEGAHERTZ


def _throttle(handle: Any) -> _Field:
    # The second is its name before driver 535.
    names = ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons")
    reasons = _first(names, handle)
    for reason, bit in _THROTTLE_BITS:
        yield "train_gpu_throttle_active", (reason,), float(bool(reasons & bit))


def _energy(handle: Any) -> _Field:
    yield "train_gpu_energy_joules_total", (), pynvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1000


def _corrected(handle: Any) -> _Field:
    yield "train_gpu_ecc_errors_total", ("corrected",), _ecc(handle, pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED)


def _uncorrected(handle: Any) -> _Field:
    kind = pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED
    yield "train_gpu_ecc_errors_total", ("uncorrected",), _ecc(handle, kind)


def _ecc(handle: Any, kind: int) -> float:
    return float(pynvml.nvmlDeviceGetTotalEccErrors(handle, kind, pynvml.NVML_VOLATILE_ECC))


def _nvlink(handle: Any) -> _Field:
    values = pynvml.nvmlDeviceGetFieldValues(handle, list(_NVLINK_FIELDS.values()))
    for kind, value in zip(_NVLINK_FIELDS, values, strict=True):
        member = _VALUE_MEMBERS.get(value.valueType)
        if value.nvmlReturn == pynvml.NVML_SUCCESS and member is not None:
            yield "train_gpu_nvlink_errors_total", (kind,), float(getattr(value.value, member))


_FIELDS: tuple[Callable[[Any], _Field], ...] = (
    _utilization,
    _memory,
    _temperature,
    _power,
    _power_limit,
    _sm_clock,
    _memory_clock,
    _throttle,
    _energy,
    _corrected,
    _uncorrected,
    _nvlink,
)
"""One function for each call that a card may not support: what one does not offer costs nothing else."""


def _first(names: tuple[str, ...], *arguments: Any) -> Any:
    """Call the first of NVML's functions that both the driver and nvidia-ml-py know."""
    for name in names:
        function = getattr(pynvml, name, None)
        if function is None:
            continue
        try:
            return function(*arguments)
        except NVMLError as error:
            if error.value != pynvml.NVML_ERROR_FUNCTION_NOT_FOUND:
                raise
    raise NVMLError(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)


def _optional(function: Callable[[], Any]) -> Any:
    try:
        return function()
    except NVMLError:
        return None


def _address(handle: Any) -> int | None:
    return ctypes.cast(handle, ctypes.c_void_p).value
