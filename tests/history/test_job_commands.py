"""`waystation history audit`, `refresh`, `report` and `sql` as a user runs them."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from tests.cli.conftest import Run, run  # noqa: F401 (a fixture)
from tests.helpers.server import background_station
from tests.history.log_writer import LogWriter
from tests.history.quick_spark import QUICK
from waystation import App, Waystation
from waystation.config import Config
from waystation.history.lease import history_lease
from waystation.history.store_access import store_access


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_clean_audit_ends_with_0_and_one_that_found_something_with_1(
    run: Run,  # noqa: F811
    settings: Config,
    tmp_path: Path,
) -> None:
    app = App()

    @app.step("pay")
    async def pay(ctx: object, order: dict[str, int]) -> dict[str, int]:
        return order

    app.pipeline("order", ["pay"])
    page = tmp_path / "page.html"
    with background_station(settings, app=app) as station, Waystation(station.url) as client:
        client.topics.create("orders")
        ids = [client.topics.produce("orders", {"n": n}, group="g").id for n in range(5)]
        assert client.transactions.start("order", {"n": 1}).wait("30s").status == "success"

        where = ("--data", settings.data, "--master", "local[1]")
        job = partial(run, "history", seconds_max=250, **QUICK)
        clean = job("audit", *where, "--json")
        report = job("report", *where, "--out", str(page))
        again = job("refresh", *where)
        query = "select topic, count(*) n from waystation.messages group by 1"
        asked = job("sql", query, *where, "--json")
        wrong = job("sql", "selekt", *where)
        ended = job("sql", "--stop", *where)
        DeltaTable(f"{settings.data}/lake/messages").delete(f"id = '{ids[2]}'")
        bad = job("audit", *where)

    told = json.loads(clean.stdout)
    assert (clean.returncode, told["counts"]) == (0, {}), clean.stderr
    assert (told["checked"]["entries of messages"], told["checked"]["transactions"]) == (5, 1)
    assert report.returncode == 0, report.stderr
    assert "<h2>Throughput</h2>" in page.read_text(encoding="utf-8")
    assert (again.returncode, again.stdout) == (0, "No new rows since the last refresh.\n")
    assert (asked.returncode, json.loads(asked.stdout)) == (0, {"topic": "orders", "n": 5})
    assert ended.stdout == "Spark has ended; the next query starts it again.\n"
    assert wrong.returncode == 2
    sentence, hint = wrong.stderr.splitlines()
    assert "selekt" in sentence
    assert hint.strip() == "List the views with `show tables in waystation`."
    assert bad.returncode == 1
    assert ids[2] in bad.stdout
    assert "missing" in bad.stdout
    # What Spark says of itself is in a file
    assert {each.stderr for each in (clean, report, again, asked, bad)} == {""}


@pytest.mark.parametrize("verb", ["audit", "refresh"])
def test_a_second_job_is_refused_before_spark_is_started(
    run: Run,  # noqa: F811
    settings: Config,
    verb: Any,
) -> None:
    with store_access(settings) as access:
        with LogWriter(access.url()) as writer:
            writer.flush()
        with history_lease(access.url(), verb):
            refused = run("history", verb, "--data", settings.data)
    assert refused.returncode == 6
    assert f"Another {verb} is at work." in refused.stderr
