"""The page: HTML that needs nothing but itself."""

from __future__ import annotations

from datetime import datetime
from html import escape
from typing import Any

from waystation.history.report.charts import Axis, bar_chart, heat_map, line_chart, short
from waystation.history.report.figures import Figures

_LEFT = 58
_STYLE = """
:root { color-scheme: light; }
body { margin: 0; background: #f4f5f7; color: #1d2433;
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
main { max-width: 940px; margin: 0 auto; padding: 32px 20px 48px; }
header h1 { margin: 0; font-size: 26px; } header p { margin: 4px 0 20px; color: #5b6474; }
section { background: #fff; border: 1px solid #e1e4ea; border-radius: 10px; padding: 18px 22px;
  margin: 0 0 18px; break-inside: avoid; }
h2 { font-size: 17px; margin: 0 0 2px; } section > p { margin: 0 0 10px; color: #5b6474; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(125px, 1fr)); gap: 12px;
  margin: 0 0 18px; }
.tile { background: #fff; border: 1px solid #e1e4ea; border-radius: 10px; padding: 12px 14px; }
.tile b { display: block; font-size: 24px; font-weight: 600; } .tile span { color: #5b6474; }
.bad b { color: #b03a48; }
/* On a telephone charts and tables are moved sideways, not squeezed. */
figure, .wide { overflow-x: auto; } figure svg { min-width: 620px; } table { min-width: 520px; }
figure { margin: 0 0 12px; } figcaption { font-weight: 600; font-size: 14px; color: #3b4454; }
svg { display: block; width: 100%; height: auto; } polyline { fill: none; stroke-width: 1.8;
  stroke-linejoin: round; } .grid { stroke: #e8eaef; } .tick { stroke: #aab1bf; }
text.axis { font-size: 11.5px; fill: #5b6474; } text.value { font-size: 12.5px; fill: #1d2433; }
.legend { display: flex; gap: 18px; font-size: 13px; color: #3b4454; flex-wrap: wrap; }
.legend i { display: inline-block; width: 11px; height: 11px; border-radius: 2px;
  margin-right: 6px; } .legend em { color: #5b6474; margin-left: auto; font-style: normal; }
table { border-collapse: collapse; width: 100%; font-size: 14px; }
th { text-align: left; color: #5b6474; font-weight: 500; border-bottom: 1px solid #e1e4ea; }
th, td { padding: 5px 0; overflow-wrap: anywhere; } th + th, td + td { padding-left: 18px; }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
tr + tr td { border-top: 1px solid #f0f1f4; } .quiet { color: #5b6474; }
footer { color: #5b6474; font-size: 13px; } @media print { body { background: #fff; } }
"""


def page(figures: Figures, *, title: str, made: datetime) -> str:
    """The whole page."""
    axis = Axis(figures.begin, figures.slots, figures.slot_seconds, left=_LEFT)
    when = f"{_time(figures.begin)} to {_time(figures.end)} UTC"
    sections = [
        _tiles(figures),
        _section(
            "Throughput",
            f"What came in and what was done, in slots of {_length(figures.slot_seconds)}.",
            line_chart(
                "Per second",
                figures.throughput,
                axis,
                unit="per second",
                slots=figures.slots,
                gaps_are_zero=True,
            ),
        ),
        _latency(figures, axis),
        _failures(figures),
        _endpoints(figures),
        _shards(figures),
        _pipelines(figures),
        _missing(figures),
    ]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head><body><main>"
        f"<header><h1>{escape(title)}</h1><p>{when}</p></header>{''.join(sections)}"
        f"<footer>Made {_time(made)} UTC from the tables of the lake."
        " Times are those of the store.</footer>"
        "</main></body></html>\n"
    )


def _tiles(figures: Figures) -> str:
    totals = figures.totals
    good = totals["succeeded"] / totals["ended"] if totals["ended"] else None
    tiles = [
        ("messages produced", short(totals["messages"]), False),
        ("bytes produced", short(totals["bytes"]), False),
        ("messages delivered", short(totals["delivered"]), False),
        ("transactions started", short(totals["started"]), False),
        ("of those ended, succeeded", "none" if good is None else f"{good:.1%}", False),
        ("dead or parked messages", short(totals["dead"]), totals["dead"] > 0),
    ]
    return (
        '<div class="tiles">'
        + "".join(
            f'<div class="tile{" bad" if bad else ""}"><b>{value}</b><span>{name}</span></div>'
            for name, value, bad in tiles
        )
        + "</div>"
    )


def _latency(figures: Figures, axis: Axis) -> str:
    charts = [
        line_chart(title, lines, axis, unit="seconds", slots=figures.slots, gaps_are_zero=False)
        for title, lines in figures.latency.items()
    ]
    text = (
        "Of the busiest: a pipeline from start to end, a subscription from a message's arrival to"
        " its delivery. Half of them took less than p50, one of a hundred more than p99."
    )
    return _section("Latency", text, *charts)


def _failures(figures: Figures) -> str:
    charts = [
        bar_chart(kind.capitalize(), dict(causes.items()), colour="#b03a48")
        for kind, causes in figures.failures.items()
        if any(causes.values())
    ]
    return _section("Failures by cause", "What did not go well, and why.", *charts)


def _endpoints(figures: Figures) -> str:
    rows = [
        (
            each["endpoint"],
            f"{each['attempts']:,}",
            f"{each['failed']:,}",
            f"{each['failed'] / each['attempts']:.1%}",
            _seconds(each["p95"]),
            each["last_failure"] or "none",
        )
        for each in figures.endpoints
    ]
    heads = ("endpoint", "attempts", "failed", "share", "slowest p95", "last failure")
    parts = []
    if rows:
        parts.append(
            heat_map(
                "Share of requests that failed",
                figures.endpoint_heat,
                figures.begin,
                unit="failed",
                share=True,
                colour="#b03a48",
            )
        )
        parts.append(_table(heads, rows, numbers=(1, 2, 3, 4)))
    return _section("Endpoint health", "Those with most failures first.", *parts)


def _shards(figures: Figures) -> str:
    if not figures.shard_heat.rows:
        return _section("Load of shards", "How evenly messages are spread.")
    text = f"The busiest shard has {figures.skew:.2g} times the mean of its subscription."
    chart = heat_map(
        "Messages taken",
        figures.shard_heat,
        figures.begin,
        unit="messages",
        share=False,
        colour="#2563a8",
    )
    return _section("Load of shards", text, chart)


def _pipelines(figures: Figures) -> str:
    rows = [
        (each["pipeline"], f"{each['started']:,}", _seconds(each["p50"]), _seconds(each["p95"]))
        for each in figures.pipelines
    ]
    table = [_table(("pipeline", "started", "p50", "p95"), rows, numbers=(1, 2, 3))] if rows else []
    return _section("Slowest pipelines", "Percentiles of the slowest hour of each.", *table)


def _missing(figures: Figures) -> str:
    told = {
        "trimmed": "were gone before they were read",
        "damaged": "are missing from the store's logs, and retention did not remove them",
        "policy": "are not recorded, as their topics say",
    }
    lines = [
        f"<p>{rows:,} entries {told.get(cause, escape(cause))}.</p>"
        for cause, rows in sorted(figures.gaps.items())
        if rows
    ]
    if "store-lost" in figures.gaps:
        lines.append("<p>The store lost a whole data set; the audit names it.</p>")
    if figures.lost:
        lines.append(
            f"<p>{figures.lost:,} entries were lost by the store after they were read.</p>"
        )
    body = "".join(lines) or "<p>Nothing is missing from this history.</p>"
    return f"<section><h2>Completeness</h2>{body}</section>"


def _section(title: str, text: str, *parts: str) -> str:
    body = "".join(parts) or '<p class="quiet">Nothing to tell.</p>'
    return f"<section><h2>{escape(title)}</h2><p>{escape(text)}</p>{body}</section>"


def _table(heads: tuple[str, ...], rows: list[Any], *, numbers: tuple[int, ...]) -> str:
    def cells(tag: str, row: tuple[str, ...]) -> str:
        return "".join(
            f"<{tag}{' class=n' if at in numbers else ''}>{escape(cell)}</{tag}>"
            for at, cell in enumerate(row)
        )

    body = "".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
    head = f"<thead><tr>{cells('th', heads)}</tr></thead>"
    return f'<div class="wide"><table>{head}<tbody>{body}</tbody></table></div>'


def _seconds(value: float) -> str:
    return f"{value:.3g} s" if value >= 1 else f"{value * 1000:.3g} ms"


def _time(moment: datetime) -> str:
    return moment.strftime("%d %b %Y, %H:%M")


def _length(seconds: int) -> str:
    return {3_600: "an hour", 86_400: "a day"}.get(seconds, f"{seconds:,} seconds")
