"""Builds every dashboard into grafana/dashboards/, or checks that what is committed there is current.

Run it through ``scripts/dashboards``.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from grafana.builders import hardware_dashboard, ranks_dashboard, run_dashboard
from grafana_foundation_sdk.cog.encoder import JSONEncoder

FOLDER = Path(__file__).resolve().parent.parent / "dashboards"
DASHBOARDS = {module.UID: module.build for module in (run_dashboard, hardware_dashboard, ranks_dashboard)}


def render() -> dict[str, str]:
    """Return the JSON text of every dashboard by its file name; the same sources give the same text."""
    return {
        f"{uid}.json": json.dumps(build(), cls=JSONEncoder, indent=2, sort_keys=True, ensure_ascii=False)
        + "\n"
        for uid, build in DASHBOARDS.items()
    }


def stale(folder: Path) -> list[str]:
    """Return the names of the files below `folder` that differ from what the sources build, sorted."""
    wanted = render()
    found = {path.name: path.read_text(encoding="utf-8") for path in folder.glob("*.json")}
    return sorted(name for name in wanted.keys() | found.keys() if wanted.get(name) != found.get(name))


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the dashboards, or check them; return the exit status."""
    parser = argparse.ArgumentParser(prog="scripts/dashboards", description="Build the Grafana dashboards.")
    parser.add_argument(
        "--check",
        action="store_true",
        help="write nothing; exit with 1 if a committed dashboard is not current",
    )
    parser.add_argument(
        "--folder", type=Path, default=FOLDER, help="where the JSON lies (default: %(default)s)"
    )
    options = parser.parse_args(arguments)
    folder: Path = options.folder

    if options.check:
        names = stale(folder)
        if names:
            print(
                f"{', '.join(names)} in {folder} is not what grafana/builders builds: "
                "run scripts/dashboards and commit the result.",
                file=sys.stderr,
            )
        return 1 if names else 0

    folder.mkdir(parents=True, exist_ok=True)
    for name, text in render().items():
        (folder / name).write_text(text, encoding="utf-8")
    for name in stale(folder):
        # What is left now was built by a source that is gone.
        (folder / name).unlink()
    return 0


if __name__ == "__main__":
    sys.exit(main())
