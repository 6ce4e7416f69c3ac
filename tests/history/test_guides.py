"""Commands, code and queries of the pages on history: they exist, and give the answers shown."""

from __future__ import annotations

import asyncio
import re
import shlex
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from demo.history import QUERY
from tests.cli.test_topic_guides import blocks
from tests.history.busy_station import DECLINED, busy_station
from tests.history.shard_life import lived
from tests.history.test_deliveries import FAILED_BY_ENDPOINT
from tests.test_examples import ROOT
from tests.test_readme import require_command
from waystation.config import Config
from waystation.history import attach
from waystation.history.ingest.job import ingest_job
from waystation.history.lake.rollup_schema import ROLLUPS
from waystation.history.lake.rollups import refresh_rollups
from waystation.history.lake.schema import BASE
from waystation.history.lake.table import Lake
from waystation.history.store_access import store_access
from waystation.testing.station import quick_settings

CONCEPT = ROOT / "docs" / "concepts" / "history.md"
ASKING = ROOT / "docs" / "guides" / "asking-history.md"
RUNNING = ROOT / "docs" / "operating" / "history.md"
PAGES = (CONCEPT, ASKING, RUNNING)


def commands(page: Path) -> list[list[str]]:
    """Return the words of all lines that call `waystation`, without the redirections."""
    lines = [line for block in blocks(page, "sh") for line in block.splitlines()]
    words = [shlex.split(line, comments=True) for line in lines if line.startswith("waystation ")]
    return [list(takewhile(lambda word: word not in "<>", each[1:])) for each in words]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.parent.name)
def test_every_command_of_a_page_is_one_that_there_is(page: Path) -> None:
    found = commands(page)
    assert len(found) >= 4
    for words in found:
        require_command(words)


def test_all_tables_are_on_the_page_of_the_concept() -> None:
    text = CONCEPT.read_text(encoding="utf-8")
    for spec in (*BASE, *ROLLUPS):
        assert f"`{spec.name}`" in text


def test_the_guide_and_the_demo_ask_the_same() -> None:
    assert QUERY in ASKING.read_text(encoding="utf-8")
    assert QUERY == FAILED_BY_ENDPOINT


def fill(spark: SparkSession, settings: Config, lake: str) -> None:
    with store_access(settings) as access:
        ingest_job(spark, Lake(lake), access).run()
    refresh_rollups(spark, Lake(lake))


@pytest.mark.timeout(300)
@pytest.mark.slow
async def test_the_code_and_the_questions_of_the_guide_have_answers(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    # Given the lake of a subscription, where the page has it
    settings = quick_settings(str(tmp_path / "station"))
    monkeypatch.chdir(tmp_path)
    async with lived(settings, trims=False):
        await asyncio.to_thread(fill, spark, settings, "data/lake")
        with store_access(settings) as access:
            # Spark runs already: what the environment says now, its processes would not hear.
            told = f'.option("topic", "orders").option("store", "{access.resolve()}")'
        names: dict[str, Any] = {}
        shown = []
        for code in blocks(ASKING, "python"):
            await asyncio.to_thread(exec, code.replace('.option("topic", "orders")', told), names)
            shown.append(capsys.readouterr().out)

    assert re.search(r"\|127\.0\.0\.1:\w+\.*\| +\d+\| +2\|", shown[0])
    assert "orders" in shown[1]
    assert "status" in shown[1]
    assert "redriven" in shown[2]
    attach(spark, lake="data/lake")
    for question in blocks(ASKING, "sql"):
        asked = question.replace("order-7", "redriven-0").replace(
            "= current_date() - 1", "is not null"
        )
        frame = spark.sql(asked)
        # The next test answers the other questions.
        if not re.search(r"waystation\.(transactions|channels|pools)", asked):
            assert frame.count() > 0, question
    by_message = spark.sql(blocks(ASKING, "sql")[0].replace("order-7", "redriven-0")).collect()
    assert [row.kind for row in by_message] == ["attempt", "attempt", "parked", "attempt"]
    for words in commands(ASKING):
        if words[:2] == ["history", "sql"]:
            assert spark.sql(words[-1]).count() > 0


@pytest.mark.timeout(300)
@pytest.mark.slow
async def test_the_questions_of_the_guide_tell_causes_of_failures_and_count_channels_and_pools(
    spark: SparkSession, tmp_path: Path
) -> None:
    lake = str(tmp_path / "lake")
    async with busy_station(str(tmp_path / "station")) as settings:
        await asyncio.to_thread(fill, spark, settings, lake)
    attach(spark, lake=lake)

    def answer(topic: str) -> list[tuple[Any, ...]]:
        (question,) = (each for each in blocks(ASKING, "sql") if topic in each)
        asked = question.replace("= current_date() - 1", "is not null")
        return [tuple(row) for row in spark.sql(asked).collect()]

    assert answer("e.cause") == [("order", "failed", DECLINED, 2)]
    answered = "the endpoint answered 409"
    assert answer("host, cause") == [("billing", "127.0.0.1", answered, 2)]
    assert ("news", 2, 0) in answer("waystation.channels")
    ((pool, *counts),) = answer("waystation.pools")
    assert (pool, counts[:3]) == ("agents", [2, 1, 0])
