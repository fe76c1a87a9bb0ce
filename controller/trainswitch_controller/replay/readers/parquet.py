"""Parquet files, as Weights & Biases keeps a run's whole history."""

from __future__ import annotations

from pathlib import Path

from trainswitch_controller.errors import NotALog, RecordedRunError
from trainswitch_controller.replay.readers.entries import Entry

SIGNATURE = b"PAR1"


def read_parquet(path: Path) -> list[Entry]:
    """Return the rows of the file; columns of anything but numbers are left out.

    Raises:
        NotALog: it has no rows.
        RecordedRunError: the package pyarrow is not installed, or the file cannot be read.
    """
    try:
        import pyarrow as pa
        from pyarrow.parquet import ParquetFile
    except ImportError as error:
        raise RecordedRunError(
            f"{path} is a Parquet file, and the package pyarrow that reads it is not installed: run "
            "pip install 'trainswitch[replay]'."
        ) from error
    try:
        with ParquetFile(path) as file:
            types = pa.types
            numbers = [
                field.name
                for field in file.schema_arrow
                if types.is_integer(field.type) or types.is_floating(field.type)
            ]
            rows = file.read(columns=numbers).to_pylist()
    except (OSError, pa.ArrowException) as error:
        raise RecordedRunError(
            f"{path} cannot be read as Parquet: {' '.join(str(error).split())[:200]}."
        ) from None
    if not rows:
        raise NotALog(f"{path} is no log of a run: it has no rows.")
    return [Entry(f"row {number}", row) for number, row in enumerate(rows)]
