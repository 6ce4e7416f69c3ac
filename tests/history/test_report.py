"""The report: one page that needs nothing but itself, with the figures of the derived tables."""

from __future__ import annotations

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

from waystation.errors import LakeRefusedError
from waystation.history.lake.rollup_schema import (
    ENDPOINT_HEALTH,
    GROUP_LOAD,
    PARTITIONS,
    PIPELINE_SLOTS,
    SUBSCRIPTION_SLOTS,
    RollupSchema,
)
from waystation.history.lake.schema import BASE
from waystation.history.lake.table import Lake
from waystation.history.report import write_report
from waystation.history.report.charts import nice, short
from waystation.history.report.writing import put as put_page

DAY = datetime(2026, 3, 1, tzinfo=UTC)
#: 20 hours.
SLOTS = 72
VILE = "<script>alert('x')</script>"


def put(lake: Path, spec: RollupSchema, rows: list[dict[str, Any]]) -> None:
    """Brings rows into a derived table, once for each length of slots that a page may read."""
    made = [
        {**row, "slot_seconds": seconds, "day": row["slot"].date()}
        for row in rows
        for seconds in (5, 1000, 3600)
    ]
    table = pa.Table.from_pylist(made, schema=spec.schema)
    write_deltalake(str(lake / spec.name), table, partition_by=list(PARTITIONS))


def fill(lake: Path) -> None:
    """A day of a shop: two pipelines, two shards, an endpoint that was away for a while."""
    load, pipelines, subscriptions, endpoints = [], [], [], []
    for number in range(SLOTS):
        slot = DAY + timedelta(seconds=1000 * number)
        busy = 1.2 + math.sin(number / 9) + 0.2 * math.sin(number * 2.1)
        away = 30 <= number < 36
        common = {"slot": slot, "project": "default"}
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
    put(lake, PIPELINE_SLOTS, pipelines)
    put(lake, SUBSCRIPTION_SLOTS, subscriptions)
    put(lake, ENDPOINT_HEALTH, endpoints)


class Reader(HTMLParser):
    """Checks that tags close, and gathers what a page is made of."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [
            value or "" for name, value in attrs if name in {"src", "href", "xlink:href"}
        ]
        if tag not in {"meta", "br"}:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_a_report_is_one_page_with_all_plots_and_nothing_from_elsewhere(
    spark: SparkSession, lake: Path, tmp_path: Path
) -> None:
    for spec in BASE:
        Lake(str(lake)).open(spec)
    file = tmp_path / "out" / "report.html"
    # Before anything was refreshed there is nothing to tell
    with pytest.raises(LakeRefusedError, match="no figures yet"):
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
    # What others have named is text
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
    assert "The busiest shard has 2 times the mean" in text
    assert "Nothing is missing from this history." in text
    rows = re.findall(r"<tr><td>(.*?)</td>", text)
    assert rows == ["crm", "ledger", "&lt;script&gt;alert(&#x27;x&#x27;)&lt;/script&gt;", "order"]


@pytest.mark.parametrize("moment", ["write_bytes", "replace"])
def test_a_report_that_dies_leaves_the_page_that_was_there(tmp_path: Path, moment: str) -> None:
    file = tmp_path / "report.html"
    put_page(file, b"yesterday")
    dies = (
        "import os, signal, sys; from pathlib import Path;"
        "from waystation.history.report.writing import put;"
        f"Path.{moment} = lambda *_: os.kill(os.getpid(), signal.SIGKILL);"
        "put(Path(sys.argv[1]), b'today')"
    )
    killed = subprocess.run([sys.executable, "-c", dies, str(file)], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert file.read_bytes() == b"yesterday"

    put_page(file, b"today")
    assert file.read_bytes() == b"today"


def test_numbers_on_axes_are_round_and_short() -> None:
    assert [nice(each) for each in (0, 0.35, 1, 17, 21, 99, 4_100)] == [
        1, 0.4, 1, 20, 30, 100, 5_000,
    ]  # fmt: skip
    assert [short(each) for each in (0, 0.25, 12, 1_234, 5_600_000)] == [
        "0", "0.25", "12", "1.23k", "5.6M",
    ]  # fmt: skip
