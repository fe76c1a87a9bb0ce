"""What every dashboard shares: the scope of a query, variables, annotations and panels with our defaults."""

from __future__ import annotations

from typing import TypeAlias

from grafana_foundation_sdk.builders import common as common_builders
from grafana_foundation_sdk.builders import dashboard as dashboard_builders
from grafana_foundation_sdk.builders import heatmap, prometheus, stat, statetimeline, timeseries
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.models import common, dashboard
from grafana_foundation_sdk.models import heatmap as heatmap_models
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

PanelBuilder: TypeAlias = timeseries.Panel | stat.Panel | statetimeline.Panel | heatmap.Panel

DATASOURCE = dashboard.DataSourceRef(type_val="prometheus", uid="${datasource}")
SCOPE = 'job=~"$job", run="$run", rank=~"$rank"'
"""Matchers that every series of the trainer's endpoint is selected by."""
RECORDED_SCOPE = 'run="$run", rank=~"$rank"'
"""Matchers of what rules record by rank: the job is not kept."""

DASHED = dashboard.DynamicConfigValue(id_val="custom.lineStyle", value={"fill": "dash", "dash": [8, 6]})
BARS = dashboard.DynamicConfigValue(id_val="custom.drawStyle", value="bars")
RIGHT_AXIS = dashboard.DynamicConfigValue(id_val="custom.axisPlacement", value="right")


def color(name: str) -> dashboard.DynamicConfigValue:
    """Return the override that draws a series in one of Grafana's named colours."""
    return dashboard.DynamicConfigValue(id_val="color", value={"mode": "fixed", "fixedColor": name})


def unit(name: str) -> dashboard.DynamicConfigValue:
    """Return the override that gives a series its own unit."""
    return dashboard.DynamicConfigValue(id_val="unit", value=name)


def series(name: str, *matchers: str) -> str:
    """Return the selector of a trainer's metric in the dashboard's scope, narrowed by `matchers`."""
    return f"{name}{{{', '.join((SCOPE, *matchers))}}}"


def recorded(name: str, *matchers: str) -> str:
    """Return the selector of what a rule records by rank, in the dashboard's scope."""
    return f"{name}{{{', '.join((RECORDED_SCOPE, *matchers))}}}"


def recorded_for_run(name: str) -> str:
    """Return the selector of what a rule records for the whole run."""
    return f'{name}{{run="$run"}}'


def rate(name: str, *matchers: str) -> str:
    """Return the per-second rate of a trainer's counter."""
    return f"rate({series(name, *matchers)}[$__rate_interval])"


def increase(name: str, *matchers: str) -> str:
    """Return the increase of a trainer's counter over `$__rate_interval`.

    That is four scrapes or more: in a graph zoomed in to single scrapes, neighbouring points share events.
    """
    return f"increase({series(name, *matchers)}[$__rate_interval])"


def share_above(histogram: str, bound: str) -> str:
    """Return the share of a histogram's observations above the bucket bound `bound`, per rank.

    There is no value where nothing was observed: 0/0 would draw a healthy-looking line.
    """
    inside = increase(f"{histogram}_bucket", f'le="{bound}"')
    all_steps = increase(f"{histogram}_count")
    return f"1 - sum by (rank) ({inside}) / (sum by (rank) ({all_steps}) > 0)"


def quantile(q: float, histogram: str) -> str:
    """Return the q-quantile of a trainer's histogram over all selected ranks."""
    return f"histogram_quantile({q}, sum by (le) ({rate(f'{histogram}_bucket')}))"


def query(ref_id: str, expr: str, legend: str = "__auto") -> prometheus.Dataquery:
    """Return a query over the dashboard's time range."""
    return prometheus.Dataquery().ref_id(ref_id).expr(expr).legend_format(legend).range()


def instant(ref_id: str, expr: str, legend: str = "__auto") -> prometheus.Dataquery:
    """Return a query for the newest value only."""
    return prometheus.Dataquery().ref_id(ref_id).expr(expr).legend_format(legend).instant()


def mean(histogram: str, by: str) -> str:
    """Return the mean of a trainer's histogram over `$__rate_interval`, by the label `by`."""
    return f"sum by ({by}) ({rate(f'{histogram}_sum')}) / (sum by ({by}) ({rate(f'{histogram}_count')}) > 0)"


def steps(*pairs: tuple[float | None, str]) -> dashboard_builders.ThresholdsConfig:
    """Return absolute thresholds from (value, colour) pairs; the first value is None: minus infinity."""
    return (
        dashboard_builders.ThresholdsConfig()
        .mode(dashboard.ThresholdsMode.ABSOLUTE)
        .steps([dashboard.Threshold(value=value, color=name) for value, name in pairs])
    )


def graph(
    title: str, description: str, unit: str, *queries: prometheus.Dataquery, span: int = 8, height: int = 8
) -> timeseries.Panel:
    """Return a time series panel; gaps in the data stay gaps."""
    return (
        timeseries.Panel()
        .title(title)
        .description(description)
        .unit(unit)
        .datasource(DATASOURCE)
        .targets([*queries])
        .span(span)
        .height(height)
        .line_width(1)
        .fill_opacity(0)
        .show_points(common.VisibilityMode.AUTO)
        .span_nulls(False)
        .legend(
            common_builders.VizLegendOptions()
            .display_mode(common.LegendDisplayMode.LIST)
            .placement(common.LegendPlacement.BOTTOM)
            .show_legend(True)
        )
        .tooltip(common_builders.VizTooltipOptions().mode(common.TooltipDisplayMode.MULTI))
    )


def logarithmic(panel: timeseries.Panel) -> timeseries.Panel:
    """Return `panel` with a logarithmic axis: for norms and ratios over many orders of magnitude."""
    return panel.scale_distribution(
        common_builders.ScaleDistributionConfig().type(common.ScaleDistribution.LOG).log(10)
    )


def limit_lines(panel: timeseries.Panel, *pairs: tuple[float | None, str]) -> timeseries.Panel:
    """Return `panel` with a dashed line at each threshold; the first value is None, see `steps`."""
    return panel.thresholds(steps(*pairs)).thresholds_style(
        common_builders.GraphThresholdsStyleConfig().mode(common.GraphTresholdsStyleMode.DASHED)
    )


def bars(
    title: str, description: str, unit: str, *queries: prometheus.Dataquery, span: int = 8, height: int = 8
) -> timeseries.Panel:
    """Return a panel of stacked bars: for counts of events."""
    return (
        graph(title, description, unit, *queries, span=span, height=height)
        .draw_style(common.GraphDrawStyle.BARS)
        .fill_opacity(80)
        .min(0)
        .decimals(0)
        .stacking(common_builders.StackingConfig().mode(common.StackingMode.NORMAL))
    )


def number(
    title: str, description: str, unit: str, *queries: prometheus.Dataquery, span: int = 3, height: int = 4
) -> stat.Panel:
    """Return a panel that shows the newest value of its queries, uncoloured until it is given thresholds."""
    return (
        stat.Panel()
        .title(title)
        .description(description)
        .unit(unit)
        .datasource(DATASOURCE)
        .targets([*queries])
        .span(span)
        .height(height)
        .thresholds(steps((None, "text")))
        .color_mode(common.BigValueColorMode.VALUE)
        .graph_mode(common.BigValueGraphMode.NONE)
        .reduce_options(common_builders.ReduceDataOptions().calcs(["lastNotNull"]).values(False))
    )


def timeline(
    title: str, description: str, *queries: prometheus.Dataquery, span: int = 12, height: int = 6
) -> statetimeline.Panel:
    """Return a panel with one row per series, filled while the series exists."""
    return (
        statetimeline.Panel()
        .title(title)
        .description(description)
        .unit("none")
        .datasource(DATASOURCE)
        .targets([*queries])
        .span(span)
        .height(height)
        .show_value(common.VisibilityMode.NEVER)
        .merge_values(True)
        .fill_opacity(80)
        .color_scheme(
            dashboard_builders.FieldColor().mode(dashboard.FieldColorModeId.PALETTE_CLASSIC_BY_NAME)
        )
        .legend(common_builders.VizLegendOptions().show_legend(False))
    )


def buckets(
    title: str, description: str, unit: str, histogram: str, *, span: int = 8, height: int = 8
) -> heatmap.Panel:
    """Return a heatmap of a trainer's histogram: one column a point, one row a bucket, colour by count."""
    expr = f"sum by (le) ({increase(f'{histogram}_bucket')})"
    return (
        heatmap.Panel()
        .title(title)
        .description(description)
        .datasource(DATASOURCE)
        .with_target(query("A", expr, "{{le}}").format(PromQueryFormat.HEATMAP))
        .span(span)
        .height(height)
        .calculate(False)
        .color(
            heatmap.HeatmapColorOptions()
            .mode(heatmap_models.HeatmapColorMode.SCHEME)
            .scheme("Oranges")
            .scale(heatmap_models.HeatmapColorScale.EXPONENTIAL)
            .exponent(0.5)
            .steps(64)
        )
        .filter_values(heatmap.FilterValueRange().le(1e-9))
        .cell_values(heatmap.CellValues().unit("suffix: steps").decimals(1))
        .y_axis(heatmap.YAxisConfig().unit(unit))
    )


def value_names(names: dict[str, tuple[str, str]]) -> list[dashboard.ValueMapping]:
    """Return the mapping that shows each value as a (text, colour)."""
    results = {
        key: dashboard.ValueMappingResult(text=text, color=name) for key, (text, name) in names.items()
    }
    return [dashboard.ValueMap(options=results)]


def datasource_variable() -> dashboard_builders.DatasourceVariable:
    """Return the variable that chooses the Prometheus to ask."""
    return dashboard_builders.DatasourceVariable("datasource").label("Data source").type("prometheus")


def label_variable(
    name: str, label: str, selector: str, *, description: str, many: bool
) -> dashboard_builders.QueryVariable:
    """Return the variable that lists the values of the label `name` among the series of `selector`.

    Args:
        name: the variable and the label.
        label: what the dashboard calls it.
        selector: a series selector; may use the variables before this one.
        description: what it chooses, for the tooltip.
        many: whether several values, or all, may be chosen; its matchers then use ``=~``.
    """
    variable = (
        dashboard_builders.QueryVariable(name)
        .label(label)
        .description(description)
        .datasource(DATASOURCE)
        .query(f"label_values({selector}, {name})")
        .refresh(dashboard.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(dashboard.VariableSort.ALPHABETICAL_ASC)
    )
    if many:
        variable.multi(True).include_all(True).all_value(".+")
        variable.current(dashboard.VariableOption(selected=True, text=["All"], value=["$__all"]))
    return variable


class PrometheusAnnotation(dashboard.AnnotationQuery):
    """An annotation with the settings of Prometheus' data source, which the SDK's model lacks.

    Attributes:
        extra: JSON fields beside the model's own.
    """

    extra: dict[str, object]

    def to_json(self) -> dict[str, object]:
        """Return the JSON of the annotation."""
        return {**super().to_json(), **self.extra}


class AnnotationBuilder(Builder[dashboard.AnnotationQuery]):
    """Builds an annotation from a PromQL expression.

    Args:
        name: its switch on the dashboard.
        expr: PromQL; each sample that exists is an event, neighbouring ones are one region.
        color: of the marker.
        title: template of the title, as ``{{alertname}}``.
        tags: labels to show as tags, separated by commas.
        value_is_time: the event lies at the sample's value (milliseconds), not at its timestamp.
    """

    def __init__(
        self, name: str, expr: str, *, color: str, title: str, tags: str, value_is_time: bool = False
    ) -> None:
        self._annotation = PrometheusAnnotation(
            name=name, datasource=DATASOURCE, enable=True, hide=False, icon_color=color, expr=expr
        )
        # Without a step of its own an annotation is asked for at 60 s, and shorter events fall through.
        self._annotation.extra = {
            "step": "1s",
            "titleFormat": title,
            "tagKeys": tags,
            "useValueForTime": value_is_time,
        }

    def build(self) -> dashboard.AnnotationQuery:
        """Return the annotation."""
        return self._annotation
