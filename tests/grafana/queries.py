"""Every query of a dashboard as plain PromQL, for tests that parse it or run it against a live Prometheus."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

BUILT_IN = {
    "__interval": "1s",
    "__interval_ms": "1000",
    "__range": "5m",
    "__range_ms": "300000",
    "__range_s": "300",
    "__rate_interval": "10s",
}
"""Values of Grafana's own variables where the caller gives none."""

_VARIABLE = re.compile(r"\$(?:(?P<bare>\w+)|\{(?P<braced>\w+)(?::\w+)?\})")
_LABEL_VALUES = re.compile(r"label_values\((?P<selector>.+),\s*(?P<label>\w+)\)", re.DOTALL)


class PanelQuery(NamedTuple):
    """One query of a dashboard, ready for Prometheus."""

    title: str
    """The panel's title, or ``variable <name>`` or ``annotation <name>``."""
    ref_id: str
    """The query's letter within its panel."""
    expr: str
    """PromQL without any variable of Grafana's."""


def panel_queries(dashboard: dict[str, Any], values: dict[str, str]) -> list[PanelQuery]:
    """Return the queries of every panel, query variable and annotation of `dashboard`.

    Args:
        dashboard: the dashboard's JSON.
        values: what the dashboard's variables stand for, as ``{"run": "gpt2", "job": ".+"}``; a value for one
            of Grafana's own variables replaces that of `BUILT_IN`.

    Raises:
        KeyError: a query uses a variable that has no value.
        ValueError: a query variable is not of the form ``label_values(selector, label)``.
    """
    known = {**BUILT_IN, **values}
    return [
        PanelQuery(title, ref_id, _substitute(expr, known, f"{title}, query {ref_id}"))
        for title, ref_id, expr in (
            *_of_panels(dashboard),
            *_of_variables(dashboard),
            *_of_annotations(dashboard),
        )
    ]


def data_panels(dashboard: dict[str, Any]) -> list[dict[str, Any]]:
    """Return every panel of `dashboard` that is not a row, those inside collapsed rows included."""
    found: list[dict[str, Any]] = []
    for panel in dashboard["panels"]:
        found.extend(panel["panels"] if panel["type"] == "row" else [panel])
    return found


def _of_panels(dashboard: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    for panel in data_panels(dashboard):
        for target in panel["targets"]:
            yield panel["title"], target["refId"], target["expr"]


def _of_variables(dashboard: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    for variable in dashboard["templating"]["list"]:
        if variable["type"] != "query":
            continue
        name = variable["name"]
        match = _LABEL_VALUES.fullmatch(variable["query"])
        if match is None:
            raise ValueError(
                f"variable {name!r} asks {variable['query']!r}: use label_values(selector, label)."
            )
        yield f"variable {name}", "A", f"count by ({match['label']}) ({match['selector']})"


def _of_annotations(dashboard: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    for annotation in dashboard["annotations"]["list"]:
        yield f"annotation {annotation['name']}", "A", annotation["expr"]


def _substitute(expr: str, values: dict[str, str], where: str) -> str:
    def value(match: re.Match[str]) -> str:
        name = match["bare"] or match["braced"]
        if name not in values:
            raise KeyError(f"{where} uses ${name}, which has no value: add it to values.")
        return values[name]

    return _VARIABLE.sub(value, expr)
