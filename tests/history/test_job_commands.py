"""Commands `audit`, `refresh`, `report` and `sql` of history, run as a user runs them."""

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
from waystation.history.lake.schema import MESSAGES
from waystation.history.lake.table import Lake
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
    # The output of Spark is in a file
    assert {each.stderr for each in (clean, report, again, asked, bad)} == {""}


@pytest.mark.parametrize("verb", ["audit", "refresh"])
def test_a_second_job_is_refused_before_spark_is_started(
    run: Run,  # noqa: F811
    settings: Config,
    verb: Any,
) -> None:
    with store_access(settings) as access:
        with LogWriter(access.resolve()) as writer:
            writer.flush()
        with history_lease(access.resolve(), verb):
            refused = run("history", verb, "--data", settings.data)
    assert refused.returncode == 6
    assert f"Another {verb} is running." in refused.stderr


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_audit_of_a_lake_with_a_damaged_file_names_the_file_and_the_remedy(
    run: Run,  # noqa: F811
    settings: Config,
) -> None:
    with background_station(settings) as station, Waystation(station.url) as client:
        client.topics.create("orders", partitions=1)
        job = partial(run, "history", seconds_max=250, **QUICK)
        where = ("--data", settings.data, "--master", "local[1]")
        for number in range(50):
            client.topics.produce("orders", {"n": number})
        assert job("ingest", *where).returncode == 0
        lake = Path(settings.data) / "lake" / "messages"
        (file,) = (lake / name for name in Lake(str(lake.parent)).open(MESSAGES).files())
        whole = file.read_bytes()

        def audit_with(content: bytes) -> list[str]:
            file.write_bytes(content)
            refused = job("audit", *where)
            assert (refused.returncode, refused.stdout) == (1, "")
            return refused.stderr.splitlines()

        cut = audit_with(whole[:100])
        # The size is right, so that only reads of the file show the damage.
        footer = audit_with(whole[:4] + bytes(len(whole) - 8) + whole[-4:])
        rows = audit_with(whole[:4] + bytes(len(whole) // 4) + whole[4 + len(whole) // 4 :])
        file.unlink()
        missing = job("audit", *where)
        assert missing.returncode == 1
        file.write_bytes(whole)
        restored = job("audit", *where, "--json")

    assert f"messages: {file.relative_to(lake)} has 100 bytes" in cut[0]
    assert f"Restore the file below {lake} from a copy of the lake." in cut[1]
    assert f"{file.relative_to(lake)} is missing" in missing.stderr
    for lines in (footer, rows):
        assert lines[0] == f"error Spark cannot read the file {file}."
        assert lines[1].strip() == "If it belongs to the lake, restore it from a copy of the lake."
    assert json.loads(restored.stdout)["counts"] == {}
