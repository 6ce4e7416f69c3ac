"""The report: one page that needs nothing but itself, with figures that readers can tell."""

from __future__ import annotations

import asyncio
import math
import re
import signal
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from pyspark.sql import SparkSession

from tests.history.busy_station import busy_station
from waystation.errors import LakeRefusedError
from waystation.history.ingest.job import ingest_job
from waystation.history.lake.rollup_schema import (
    ENDPOINT_METRICS,
    GROUP_LOAD,
    PARTITIONS,
    PIPELINE_METRICS,
    SUBSCRIPTION_METRICS,
    RollupSchema,
)
from waystation.history.lake.rollups import refresh_rollups
from waystation.history.lake.schema import BASE
from waystation.history.lake.table import Lake
from waystation.history.report.charts import line_chart, nice, short
from waystation.history.report.figures import Buckets, endpoint_name, time_axis
from waystation.history.report.page import replace_file, write_report
from waystation.history.store_access import store_access

DAY = datetime(2026, 3, 1, tzinfo=UTC)
#: 20 hours.
BUCKETS = 72
VILE = "<script>alert('x')</script>"


def put(lake: Path, spec: RollupSchema, rows: list[dict[str, Any]]) -> None:
    """Write rows to a rollup, once for each length of buckets that a page may read."""
    made = [
        {**row, "bucket_seconds": seconds, "day": row["bucket"].date()}
        for row in rows
        for seconds in (5, 1000, 3600)
    ]
    table = pa.Table.from_pylist(made, schema=spec.schema)
    write_deltalake(str(lake / spec.name), table, partition_by=list(PARTITIONS))


def fill(lake: Path) -> None:
    """Write a day of two pipelines, four shards, and an endpoint that failed for a while."""
    load, pipelines, subscriptions, endpoints = [], [], [], []
    for number in range(BUCKETS):
        bucket = DAY + timedelta(seconds=1000 * number)
        busy = 1.2 + math.sin(number / 9) + 0.2 * math.sin(number * 2.1)
        away = 30 <= number < 36
        common = {"bucket": bucket, "project": "default"}
        messages = int(9_000 * busy)
        topic = {**common, "topic": "orders", "partition": 0, "groups": 40, "largest": []}
        load.append({**topic, "messages": messages, "bytes": messages * 180})
        for shard, share in ((0, 0.5), (1, 0.3), (2, 0.15), (3, 0.05)):
            taken = int(messages * share)
            load.append({**topic, "subscription": "billing", "shard": shard, "messages": taken})
        for name, rate, seconds in (("order", 3_000, 0.4), (VILE, 400, 4.0)):
            ended = int(rate * busy)
            pipelines.append(
                {
                    **common,
                    "pipeline": name,
                    "started": ended,
                    "success": ended - 40,
                    "failed": 25,
                    "aborted": 2,
                    "internal_error": 1,
                    "timeout": 9,
                    "cancelled": 3,
                    "steps": ended * 3,
                    "step_failures": 50,
                    "rescued": 1,
                    "seconds_p50": seconds * busy / 2,
                    "seconds_p95": seconds * busy * (3 if away else 1),
                    "seconds_p99": seconds * busy * (5 if away else 1.6),
                }
            )
        subscriptions.append(
            {
                **common,
                "subscription": "billing",
                "delivered": messages - 20,
                "failed": 2_000 if away else 15,
                "dead": 4 if away else 0,
                "parked": 16 if away else 0,
                "filtered": 0,
                **{
                    f"latency_{p}": each * (9 if away else 1)
                    for p, each in (("p50", 0.05), ("p95", 0.2), ("p99", 0.6))
                },
                **{f"attempts_{p}": 1.0 for p in ("p50", "p95", "p99")},
            }
        )
        for name, failed in (("crm", int(messages * 0.7) if away else 12), ("ledger", 1)):
            endpoints.append(
                {
                    **common,
                    "endpoint": name,
                    "attempts": messages,
                    "failed": failed,
                    "refused": failed // 3,
                    "timed_out": failed // 2,
                    "seconds_p50": 0.03,
                    "seconds_p95": 2.5 if away else 0.12,
                    "seconds_p99": 5.0 if away else 0.3,
                    "last_failure": "timeout" if away else "503",
                }
            )
    put(lake, GROUP_LOAD, load)
    put(lake, PIPELINE_METRICS, pipelines)
    put(lake, SUBSCRIPTION_METRICS, subscriptions)
    put(lake, ENDPOINT_METRICS, endpoints)


class Reader(HTMLParser):
    """Parser that checks that tags close, and collects tags, links and the cells of tables."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.links: list[str] = []
        #: Texts of the cells of all rows of tables.
        self.rows: list[list[str]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [
            value or "" for name, value in attrs if name in {"src", "href", "xlink:href"}
        ]
        if tag == "tr":
            self.rows.append([])
        if tag == "td":
            self.rows[-1].append("")
        if tag not in {"meta", "br"}:
            self.open.append(tag)

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "td":
            self.rows[-1][-1] += data

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_a_report_is_one_page_with_all_charts_and_nothing_from_elsewhere(
    spark: SparkSession, lake: Path, tmp_path: Path
) -> None:
    for spec in BASE:
        Lake(str(lake)).open(spec)
    file = tmp_path / "out" / "report.html"
    # Without rollups there are no figures
    with pytest.raises(LakeRefusedError, match="no rollups yet"):
        write_report(spark, Lake(str(lake)), file, now_ms=0)
    fill(lake)

    done = write_report(spark, Lake(str(lake)), file, now_ms=1_772_440_000_000)

    text = file.read_text(encoding="utf-8")
    assert (done.bytes, [each.name for each in file.parent.iterdir()]) == (
        len(text.encode()),
        ["report.html"],
    )
    reader = Reader()
    reader.feed(text)
    assert reader.open == []
    # No script, and nothing that is loaded
    assert "script" not in reader.tags
    assert reader.links == []
    assert "url(" not in text
    assert "@import" not in text
    # Names of users are escaped
    assert VILE not in text
    assert "&lt;script&gt;" in text
    for title in (
        "Throughput", "Latency", "Failures by cause", "Endpoint health", "Load of shards",
        "Slowest pipelines", "Completeness",
    ):  # fmt: skip
        assert f"<h2>{title}</h2>" in text
    # Throughput, three of latency, three of failures, endpoints, shards
    assert text.count("<svg") == 9
    assert reader.tags.count("polyline") == 3 + 3 * 3
    assert "The busiest shard took 2 times the mean" in text
    assert "The lake misses no entry of the logs." in text
    rows = re.findall(r"<tr><td>(.*?)</td>", text)
    assert rows == ["crm", "ledger", "&lt;script&gt;alert(&#x27;x&#x27;)&lt;/script&gt;", "order"]


@pytest.mark.parametrize("moment", ["write_bytes", "replace"])
def test_a_crash_while_a_report_is_written_leaves_the_old_page(tmp_path: Path, moment: str) -> None:
    file = tmp_path / "report.html"
    replace_file(file, b"yesterday")
    dies = (
        "import os, signal, sys; from pathlib import Path;"
        "from waystation.history.report.page import replace_file;"
        f"Path.{moment} = lambda *_: os.kill(os.getpid(), signal.SIGKILL);"
        "replace_file(Path(sys.argv[1]), b'today')"
    )
    killed = subprocess.run([sys.executable, "-c", dies, str(file)], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert file.read_bytes() == b"yesterday"

    replace_file(file, b"today")
    assert file.read_bytes() == b"today"


def test_numbers_on_axes_are_round_and_short() -> None:
    assert [nice(each) for each in (0, 0.35, 1, 17, 21, 99, 4_100)] == [
        1, 0.4, 1, 20, 30, 100, 5_000,
    ]  # fmt: skip
    assert [short(each) for each in (0, 0.25, 12, 1_234, 5_600_000)] == [
        "0", "0.25", "12", "1.23k", "5.6M",
    ]  # fmt: skip


def read(file: Path) -> Reader:
    """Return the parsed page."""
    reader = Reader()
    reader.feed(file.read_text(encoding="utf-8"))
    return reader


def test_a_pipeline_of_which_nothing_has_ended_has_no_latency(
    spark: SparkSession, lake: Path, tmp_path: Path
) -> None:
    for spec in BASE:
        Lake(str(lake)).open(spec)
    ended = {"success": 2, "seconds_p50": 0.5, "seconds_p95": 0.7, "seconds_p99": 0.7}
    pipelines = [
        {"project": "a", "pipeline": "order", "started": 2, **ended},
        # The busiest by far
        {"project": "b", "pipeline": "order", "started": 900},
        {"project": "b", "pipeline": "ship", "started": 800},
    ]
    counts = ("success", "failed", "aborted", "internal_error", "timeout", "cancelled")
    zeros = dict.fromkeys(counts, 0)
    put(lake, PIPELINE_METRICS, [{"bucket": DAY, **zeros, **each} for each in pipelines])
    for spec in (GROUP_LOAD, SUBSCRIPTION_METRICS, ENDPOINT_METRICS):
        put(lake, spec, [])

    write_report(spark, Lake(str(lake)), tmp_path / "page.html", now_ms=0)

    page = read(tmp_path / "page.html")
    assert page.rows[1:] == [
        ["a/order", "2", "2", "500 ms", "700 ms"],
        ["b/order", "900", "0", "none", "none"],
        ["b/ship", "800", "0", "none", "none"],
    ]
    titles = re.findall(r"<figcaption>(.*?)</figcaption>", (tmp_path / "page.html").read_text())
    assert titles == ["Per second", "pipeline a/order"]


def test_a_report_about_an_empty_lake_says_that_nothing_happened(
    spark: SparkSession, lake: Path, tmp_path: Path
) -> None:
    for spec in BASE:
        Lake(str(lake)).open(spec)
    refresh_rollups(spark, Lake(str(lake)))

    done = write_report(spark, Lake(str(lake)), tmp_path / "page.html", now_ms=0)

    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert done.begin == done.end == datetime(1970, 1, 1, tzinfo=UTC)
    assert "No activity" in text
    assert "<svg" not in text
    assert read(tmp_path / "page.html").open == []


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_a_report_about_a_minute_of_a_station_shows_lines_and_names(
    spark: SparkSession, tmp_path: Path, lake: Path
) -> None:
    def report(url: Any) -> None:
        ingest_job(spark, Lake(str(lake)), url).run()
        refresh_rollups(spark, Lake(str(lake)))
        write_report(spark, Lake(str(lake)), tmp_path / "page.html", now_ms=0)

    async with busy_station(str(tmp_path / "station")) as settings:
        with store_access(settings) as access:
            await asyncio.to_thread(report, access)

    page = read(tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    rows = {row[0]: row[1:] for row in page.rows if row}
    # Endpoints have the name of the host or webhook and of who sends there
    assert rows["127.0.0.1 (billing)"][:3] == ["5", "2", "40.0%"]
    assert rows["webhook of order"][:2] == ["4", "0"]
    assert rows["crm"][:2] == ["2", "0"]
    assert not re.search(r"\b[0-9a-f]{12,}\b", text)
    # A pipeline of which nothing has ended
    assert rows["courier"] == ["1", "0", "none", "none"]
    # Channels and pools
    assert rows["news"] == ["2", "1", "0", "0"]
    assert rows["agents"][:3] == ["2", "1", "0"]
    # A run of seconds is drawn as lines
    assert "polyline" in page.tags
    assert "circle" not in page.tags


def test_a_single_bucket_is_drawn_as_a_level_line_with_time_before_and_after() -> None:
    buckets = time_axis(DAY, DAY + timedelta(seconds=4))
    assert buckets == Buckets(DAY - timedelta(seconds=5), 5, 3)
    for gaps_are_zero in (False, True):
        drawn = line_chart("t", {"a": {1: 8.0}}, buckets, unit="", gaps_are_zero=gaps_are_zero)
        (points,) = re.findall(r'<polyline points="(.*?)"', drawn)
        at_top = [float(each.split(",")[0]) for each in points.split() if each.endswith(",14.0")]
        first, last = at_top
        assert last - first == pytest.approx(790 / 3, abs=0.2)
        assert "circle" not in drawn


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [(3, 5), (60, 5), (1_495, 5), (1_500, 100), (86_400, 1_000), (7 * 86_400, 3_600)],
)
def test_the_time_axis_covers_the_run_with_at_most_300_buckets(seconds: int, expected: int) -> None:
    begin, end = DAY + timedelta(seconds=2), DAY + timedelta(seconds=2 + seconds)
    axis = time_axis(begin, end)
    assert axis.seconds == expected
    assert axis.count <= 303
    assert axis.start <= begin
    assert axis.end >= end


@pytest.mark.parametrize("seconds", [4, 45, 600, 3_600, 86_400, 30 * 86_400])
def test_every_label_of_the_time_axis_is_within_the_chart(seconds: int) -> None:
    begin = DAY - timedelta(seconds=seconds % 5)
    axis = time_axis(begin, DAY + timedelta(seconds=seconds))
    drawn = line_chart("t", {"a": {0: 1.0}}, axis, unit="", gaps_are_zero=True)
    pattern = r'<text class="axis" x="([\d.]+)" y="210" text-anchor="(\w+)">([^<]+)</text>'
    labels = re.findall(pattern, drawn)
    # Ticks and labels come in pairs
    assert len(labels) == drawn.count('class="tick"') >= 2
    for x, anchor, text in labels:
        # A letter has 6.5 units at most
        width = 6.5 * len(text)
        right = float(x) + (width / 2 if anchor == "middle" else 0)
        assert right <= 860
        assert right - width >= 0


def test_endpoints_are_named_by_host_or_kind_and_users() -> None:
    digest = "dba6e6310001"
    assert endpoint_name(f"crm.example:{digest}", ["billing"]) == "crm.example (billing)"
    assert endpoint_name(f"crm.example:{digest}", ["a", "b", "c"]) == "crm.example (a, b, …)"
    assert endpoint_name(f"crm.example:{digest}", []) == "crm.example"
    assert endpoint_name("w.default.0123456789abcdef", ["order"]) == "webhook of order"
    assert endpoint_name("w.default.0123456789abcdef", []) == "webhook of transactions"
    assert endpoint_name("c.default.results", []) == "channel results"
    assert endpoint_name("channel:default.board", ["board"]) == "channel:default.board"
    assert endpoint_name("crm", []) == "crm"
