"""The report: one HTML page about the time in a lake, without scripts or external files."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from html import escape
from pathlib import Path

import msgspec
import pandas as pd
from pyspark.sql import SparkSession

from waystation.errors import LakeRefusedError, NoLakeError
from waystation.history.lake.rollup_schema import ROLLUPS
from waystation.history.lake.table import Lake
from waystation.history.lake.views import attach, open_snapshot
from waystation.history.report.charts import bar_chart, heat_map, line_chart, short
from waystation.history.report.figures import Figures, Line, read_figures

_RED, _BLUE = "#b03a48", "#2563a8"
#: A shorter run needs seconds in the times of its heading.
_SHORT_SECONDS = 3_600
#: Sentences about rows that are not in the lake, by cause.
_GAPS = {
    "expired": "were deleted after history.keep_days",
    "trimmed": "were removed from the logs before they were read",
    "damaged": "are missing from the logs of the store, and retention did not remove them",
    "policy": "are not recorded, because their topic, channel or pool says so",
    "lost": "were lost by the store after they were read",
}
_STYLE = """
:root { color-scheme: light; }
body { margin: 0; background: #f4f5f7; color: #1d2433;
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
main { max-width: 940px; margin: 0 auto; padding: 32px 20px 48px; }
header h1 { margin: 0; font-size: 26px; } header p { margin: 4px 0 20px; color: #5b6474; }
section { background: #fff; border: 1px solid #e1e4ea; border-radius: 10px; padding: 18px 22px;
  margin: 0 0 18px; break-inside: avoid; }
h2 { font-size: 17px; margin: 0 0 2px; } section > p { margin: 0 0 10px; color: #5b6474; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(180px, 1fr)); gap: 12px;
  margin: 0 0 18px; }
.tile { background: #fff; border: 1px solid #e1e4ea; border-radius: 10px; padding: 12px 14px; }
.tile b { display: block; font-size: 24px; font-weight: 600; } .tile span { color: #5b6474; }
.bad b { color: #b03a48; }
/* On a small screen charts and tables scroll sideways instead of shrinking. */
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


class WrittenReport(msgspec.Struct, frozen=True):
    """A report that was written. Without activity, both times are those of the writing."""

    file: str
    bytes: int
    begin: datetime
    end: datetime


def write_report(
    spark: SparkSession, lake: Lake, file: Path, *, now_ms: int, days: float = 7, title: str = ""
) -> WrittenReport:
    """Write the page about the last days with activity.

    Raise NoLakeError if there is no lake, LakeRefusedError if its rollups were never computed.
    """
    # One version of all tables, however long the queries take.
    attach(spark, lake=open_snapshot(lake.root))
    try:
        lake.require(ROLLUPS)
    except NoLakeError as error:
        raise LakeRefusedError(
            "The lake has no rollups yet.", hint="Run `waystation history refresh` first."
        ) from error
    figures = read_figures(spark, days=days)
    made = datetime.fromtimestamp(now_ms / 1000, UTC)
    text = render(figures, title=title or "What passed through Waystation", made=made).encode()
    replace_file(file, text)
    begin, end = (figures.begin, figures.end) if figures else (made, made)
    return WrittenReport(str(file), len(text), begin, end)


def replace_file(file: Path, text: bytes) -> None:
    """Write a file beside its place and rename it, so that no reader sees half of it."""
    file.parent.mkdir(parents=True, exist_ok=True)
    partial = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        partial.write_bytes(text)
        partial.replace(file)
    finally:
        partial.unlink(missing_ok=True)


def render(figures: Figures | None, *, title: str, made: datetime) -> str:
    """Return the HTML of a page; without figures it says that nothing happened."""
    if figures is None:
        heading = "No activity"
        sections = [
            "<section><p>The lake has no messages, deliveries or transactions.</p></section>"
        ]
    else:
        heading = _times(figures.begin, figures.end)
        sections = [
            _tiles(figures),
            _throughput(figures),
            _latency(figures),
            _failures(figures),
            _endpoints(figures),
            _shards(figures),
            _pipelines(figures),
            *_channels(figures),
            *_pools(figures),
            _missing(figures),
        ]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head><body><main>"
        f"<header><h1>{escape(title)}</h1><p>{heading}</p></header>{''.join(sections)}"
        f"<footer>Made {made:%d %b %Y, %H:%M} UTC from the tables of the lake."
        " Times are those of the store.</footer></main></body></html>\n"
    )


# -- Sections ----------------------------------------------------------------------------------


def _tiles(figures: Figures) -> str:
    totals = figures.totals
    tiles = [
        ("messages produced to topics", short(totals["messages"]), False),
        ("bytes produced to topics", short(totals["bytes"]), False),
        ("messages delivered", short(totals["delivered"]), False),
        ("dead or parked messages", short(totals["dead"]), totals["dead"] > 0),
        ("transactions started", short(totals["started"]), False),
        ("of those ended, succeeded", _share(totals["succeeded"], totals["ended"]), False),
        ("messages published to channels", short(totals["published"]), False),
        ("messages sent to pools", short(totals["enqueued"]), False),
    ]
    return (
        '<div class="tiles">'
        + "".join(
            f'<div class="tile{" bad" if bad else ""}"><b>{value}</b><span>{name}</span></div>'
            for name, value, bad in tiles
        )
        + "</div>"
    )


def _throughput(figures: Figures) -> str:
    lines = {name: line for name, line in figures.throughput.items() if line}
    chart = line_chart("Per second", lines, figures.buckets, unit="per second", gaps_are_zero=True)
    length = figures.buckets.seconds
    text = {3_600: "one hour", 86_400: "one day"}.get(length, f"{length:,} seconds")
    return _section("Throughput", f"Means of time buckets of {text}.", [chart])


def _latency(figures: Figures) -> str:
    charts = [_latency_chart(figures, title, lines) for title, lines in figures.latency.items()]
    text = (
        "The busiest pipelines, from start to end of a transaction, and subscriptions, from the"
        " time of a message to its delivery. Half took less than p50, one of a hundred more than"
        " p99."
    )
    return _section("Latency", text, charts, empty="No transaction or delivery has ended.")


def _latency_chart(figures: Figures, title: str, lines: dict[str, Line]) -> str:
    unit = "seconds"
    if max(value for line in lines.values() for value in line.values()) < 1:
        unit = "milliseconds"
        lines = {
            name: {at: value * 1000 for at, value in line.items()} for name, line in lines.items()
        }
    return line_chart(title, lines, figures.buckets, unit=unit, gaps_are_zero=False)


def _failures(figures: Figures) -> str:
    charts = [
        bar_chart(kind.capitalize(), causes, colour=_RED)
        for kind, causes in figures.failures.items()
        if any(causes.values())
    ]
    text = "Ends of transactions, requests to endpoints, and messages without delivery."
    return _section("Failures by cause", text, charts, empty="Nothing failed.")


def _endpoints(figures: Figures) -> str:
    rows = [
        (
            row.Index,
            f"{row.attempts:,.0f}",
            f"{row.failed:,.0f}",
            _share(row.failed, row.attempts),
            _seconds(row.p95),
            row.last_failure if isinstance(row.last_failure, str) else "none",
        )
        for row in figures.endpoints.itertuples()
    ]
    heads = ("endpoint", "attempts", "failed", "share", "slowest p95", "last failure")
    parts = []
    if any(figures.endpoints["failed"]):
        parts.append(
            heat_map(
                "Share of requests that failed",
                figures.endpoint_heat,
                unit="failed",
                share=True,
                colour=_RED,
            )
        )
    if rows:
        parts.append(_table(heads, rows, numbers=range(1, 5)))
    text = "Endpoints with most failures first."
    return _section("Endpoint health", text, parts, empty="No request was made.")


def _shards(figures: Figures) -> str:
    empty = "No subscription took a message."
    if math.isnan(figures.skew):
        return _section(
            "Load of shards", "How evenly subscriptions spread messages.", [], empty=empty
        )
    text = f"The busiest shard took {figures.skew:.2g} times the mean of its subscription."
    chart = heat_map(
        "Messages taken, by subscription and shard",
        figures.shard_heat,
        unit="messages",
        share=False,
        colour=_BLUE,
    )
    return _section("Load of shards", text, [chart], empty=empty)


def _pipelines(figures: Figures) -> str:
    rows = [
        (
            row.Index,
            f"{row.started:,.0f}",
            f"{row.ended:,.0f}",
            _seconds(row.p50),
            _seconds(row.p95),
        )
        for row in figures.pipelines.itertuples()
    ]
    heads = ("pipeline", "started", "ended", "p50", "p95")
    text = "Percentiles from start to end, in the slowest hour of each pipeline."
    parts = [_table(heads, rows, numbers=range(1, 5))] if rows else []
    return _section("Slowest pipelines", text, parts, empty="No transaction was started.")


def _channels(figures: Figures) -> Iterator[str]:
    text = "Channels with most messages first. One acknowledgement may cover several messages."
    yield from _counts("Channels", text, "channel", figures.channels)


def _pools(figures: Figures) -> Iterator[str]:
    text = "Pools with most messages first. A key moves when another worker gets its messages."
    table = figures.pools.rename(columns={"moved": "keys moved"})
    yield from _counts("Pools", text, "pool", table)


def _counts(title: str, text: str, name: str, table: pd.DataFrame) -> Iterator[str]:
    """Yield a section with a table, or nothing for a server that does not use this part."""
    if len(table):
        rows = [(key, *(f"{value:,.0f}" for value in row)) for key, *row in table.itertuples()]
        heads = (name, *table.columns)
        yield _section(title, text, [_table(heads, rows, numbers=range(1, len(heads)))])


def _missing(figures: Figures) -> str:
    lines = [
        f"{rows:,} entries {_GAPS.get(cause, escape(cause))}."
        for cause, rows in sorted(figures.gaps.items())
        if rows
    ]
    if "store-lost" in figures.gaps:
        lines.append("The store lost a whole data set; the audit names it.")
    body = "".join(f"<p>{line}</p>" for line in lines or ["The lake misses no entry of the logs."])
    return f"<section><h2>Completeness</h2>{body}</section>"


# -- HTML --------------------------------------------------------------------------------------


def _section(title: str, text: str, parts: Sequence[str], *, empty: str = "") -> str:
    """Return a section with its parts, or with the sentence `empty` if it has no parts."""
    body = f"<p>{escape(text)}</p>{''.join(parts)}" if parts else f"<p>{escape(empty)}</p>"
    return f"<section><h2>{escape(title)}</h2>{body}</section>"


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: Iterable[int]) -> str:
    right = {*numbers}

    def cells(tag: str, row: Sequence[str]) -> str:
        return "".join(
            f"<{tag}{' class=n' if at in right else ''}>{escape(cell)}</{tag}>"
            for at, cell in enumerate(row)
        )

    body = "".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
    head = f"<thead><tr>{cells('th', heads)}</tr></thead>"
    return f'<div class="wide"><table>{head}<tbody>{body}</tbody></table></div>'


def _share(part: float, whole: float) -> str:
    return f"{part / whole:.1%}" if whole else "none"


def _seconds(value: float) -> str:
    if math.isnan(value):
        return "none"
    return f"{value:.3g} s" if value >= 1 else f"{value * 1000:.3g} ms"


def _times(begin: datetime, end: datetime) -> str:
    is_short = (end - begin).total_seconds() < _SHORT_SECONDS
    day, time = "%d %b %Y, ", "%H:%M:%S" if is_short else "%H:%M"
    end_form = time if begin.date() == end.date() else day + time
    return f"{begin.strftime(day + time)} to {end.strftime(end_form)} UTC"
