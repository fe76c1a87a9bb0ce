"""Prometheus's remote-write protocol 1.0, for series on a grid of moments.

A request is a protobuf message, compressed with Snappy. It is put together here by slices of whole series,
because a general encoder would take longer for the millions of samples than Prometheus does to take them in:

    WriteRequest { repeated TimeSeries timeseries = 1 }
    TimeSeries   { repeated Label labels = 1; repeated Sample samples = 2 }
    Label        { string name = 1; string value = 2 }
    Sample       { double value = 1; int64 timestamp = 2 }

On the loopback nothing is gained by compression, so the Snappy block is one literal: its own way of saying
that bytes stand for themselves.

(Prometheus Remote-Write 1.0 specification; Snappy format description, google/snappy.)
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Iterable, Iterator

from trainswitch_controller.replay.series import Labels, Series
from trainswitch_controller.replay.timeline import Grid

HEADERS = {
    "Content-Type": "application/x-protobuf",
    "Content-Encoding": "snappy",
    "X-Prometheus-Remote-Write-Version": "0.1.0",
}
_REQUEST_BYTES = 4 << 20
"""A request is sent when it has grown beyond this: it costs little, and any server takes it."""
_STALE = struct.pack("<Q", 0x7FF0000000000002)
"""The NaN that says: the series has ended here."""
_SAMPLE_BYTES = 18
_VALUE_AT = 3
_TIMESTAMP_BYTES = 6
"""Of a varint for milliseconds from 1971 to 2109."""


class Encoder:
    """Encodes series on one grid; what is the same for all of them is made once."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid
        self._template = bytearray()

    def requests(self, series: Iterable[Series]) -> Iterator[bytes]:
        """Yield the bodies of the requests that write `series`."""
        parts: list[bytes] = []
        size = 0
        for one in series:
            if one.stretches:
                parts.append(self._time_series(one))
                size += len(parts[-1])
            if size > _REQUEST_BYTES:
                yield snappy_literal(b"".join(parts))
                parts, size = [], 0
        if parts:
            yield snappy_literal(b"".join(parts))

    def _time_series(self, series: Series) -> bytes:
        body = _labels(series.labels) + b"".join(
            self._samples(stretch.start, stretch.values) for stretch in series.stretches
        )
        return b"\x0a" + varint(len(body)) + body

    def _samples(self, start: int, values: array[float]) -> bytes:
        """Return the samples of one stretch, and the staleness marker that ends it."""
        count = len(values) + 1
        self._extend(start + count)
        samples = self._template[start * _SAMPLE_BYTES : (start + count) * _SAMPLE_BYTES]
        if sys.byteorder == "big":
            values = array("d", values)
            values.byteswap()
        raw = values.tobytes() + _STALE
        for byte in range(8):
            samples[_VALUE_AT + byte :: _SAMPLE_BYTES] = raw[byte::8]
        return bytes(samples)

    def _extend(self, count: int) -> None:
        """Make the samples of the grid's first `count` moments, with room for their values."""
        have = len(self._template) // _SAMPLE_BYTES
        if have < count:
            self._template += b"".join(
                b"\x12\x10\x09" + bytes(8) + b"\x10" + varint(self._grid.at(index))
                for index in range(have, count + 1024)
            )


def varint(number: int) -> bytes:
    """Return a number that is not negative as a protobuf varint."""
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


def snappy_literal(data: bytes) -> bytes:
    """Return a Snappy block that holds `data` (not empty) as it is."""
    return varint(len(data)) + b"\xfc" + struct.pack("<I", len(data) - 1) + data


def _labels(labels: Labels) -> bytes:
    encoded = []
    for name, value in labels:
        pair = _string(b"\x0a", name) + _string(b"\x12", value)
        encoded.append(b"\x0a" + varint(len(pair)) + pair)
    return b"".join(encoded)


def _string(tag: bytes, text: str) -> bytes:
    data = text.encode()
    return tag + varint(len(data)) + data
