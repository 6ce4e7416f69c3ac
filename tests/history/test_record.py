"""`record` and `redact`: no file of the lake has data that a topic or pipeline withholds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from deltalake import DeltaTable

from tests.helpers.server import background_station
from tests.history.lake_check import gaps_of, projected_rows
from tests.history.local_ingest import local_ingest
from tests.history.log_writer import LogWriter, envelopes
from waystation import App, Child, Fail, Parallel, Wait, Waystation
from waystation.config import Config
from waystation.history.lake.table import LakeTable
from waystation.history.store_access import store_access
from waystation.logs import keys
from waystation.topics.keys import definition_key

ORDERS = "t.default.orders.0"


class DeathError(Exception):
    """Simulated crash of the process."""


@pytest.fixture
def ingest(store_url: str, lake: Path) -> Any:
    return lambda **more: local_ingest(lake, store_url, **more)


def rows(lake: Path, table: str = "messages") -> list[dict[str, Any]]:
    found = DeltaTable(str(lake / table)).to_pyarrow_table(filters=[("row_state", "=", "live")])
    return found.sort_by([("log", "ascending"), ("log_offset", "ascending")]).to_pylist()


def say(writer: LogWriter, **options: Any) -> None:
    """Define options of the topic of `ORDERS`, with the fields that history reads."""
    body = msgspec.json.encode({"name": "orders", "options": options, "later": "unknown"})
    writer.command("HSET", definition_key("default", "orders"), "body", body.decode())


def everything(lake: Path) -> bytes:
    """Return the unpacked rows of all files, also of files that belong to no table."""
    found = b""
    for file in lake.rglob("*.parquet"):
        table = DeltaTable(str(lake / file.relative_to(lake).parts[0])).to_pyarrow_table()
        found += repr(table.to_pylist()).encode()
    return found


def test_a_topic_says_what_is_recorded_and_may_say_otherwise_later(
    ingest: Any, writer: LogWriter, lake: Path
) -> None:
    writer.create(ORDERS)
    told: list[tuple[dict[str, Any], bytes | None, str]] = [
        ({}, b'{"n":0}', "full"),
        ({"record": "headers"}, None, "headers"),
        ({"redact": ["/n"]}, b'{"n":"[redacted]"}', "redacted"),
    ]
    for number, (options, _, _) in enumerate(told):
        say(writer, **options)
        writer.append(ORDERS, envelopes(1, first=number, group="g"))
        writer.append_raw(ORDERS, [b"secret, and no envelope"])
        assert ingest().run().rows == 2

    found = rows(lake)
    assert [(row["payload"], row["recorded"]) for row in found[::2]] == [
        (payload, word) for _, payload, word in told
    ]
    # All but the payload is there, and its size is what it was
    assert [(row["id"], row["group"], row["size"]) for row in found[::2]] == [
        (f"m-{number}", "g", 7) for number in range(3)
    ]
    assert {row["headers"][0]["name"] for row in found[::2]} == {"content-type"}
    # Only the first policy keeps bytes that are no envelope
    assert [row["payload"] for row in found[1::2]] == [b"secret, and no envelope", None, None]
    assert all(row["malformed"] for row in found[1::2])


def test_ingest_of_unrecorded_messages_writes_one_gap_after_a_crash_and_a_new_policy(
    ingest: Any, writer: LogWriter, lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer.create(ORDERS)
    say(writer, record="none")
    writer.append(ORDERS, envelopes(5))
    commit = LakeTable.commit

    def dies(table: LakeTable, *given: Any) -> None:
        commit(table, *given)
        raise DeathError

    # Given an ingest that crashed after it committed the gap, and a topic that was changed then
    with monkeypatch.context() as patch:
        patch.setattr(LakeTable, "commit", dies)
        with pytest.raises(DeathError):
            ingest().run()
    say(writer)
    writer.append(ORDERS, envelopes(2, first=5))

    done = ingest().run()

    # Then what was said when it was read holds, and nothing is in both
    assert (done.rows, done.withheld_rows, done.gap_rows) == (2, 0, 0)
    assert [row["id"] for row in rows(lake)] == ["m-5", "m-6"]
    assert gaps_of(lake) == [(ORDERS, 0, 5, "policy")]

    # And the other way round
    say(writer, record="none")
    writer.append(ORDERS, envelopes(3, first=7))
    living = ingest()
    assert (living.run().withheld_rows, living.run().withheld_rows) == (3, 0)
    assert gaps_of(lake) == [(ORDERS, 0, 5, "policy"), (ORDERS, 7, 10, "policy")]
    assert writer.held(ORDERS) == {"~history": 9}
    assert b"m-8" not in everything(lake)


def test_ingest_skips_a_topic_with_unknown_recording_options(
    ingest: Any, writer: LogWriter, lake: Path
) -> None:
    others = "t.default.others.0"
    for log in (ORDERS, others):
        writer.create(log)
        writer.append(log, envelopes(2))
    say(writer, record="a tenth")

    assert ingest().run().rows == 2
    assert {row["topic"] for row in rows(lake)} == {"others"}
    assert writer.command("EXISTS", keys.holds(ORDERS, 0)) == 0
    say(writer)
    assert ingest().run().rows == 2


def shop() -> App:
    app = App()

    @app.step("shop/take")
    async def take(ctx: Any, order: dict[str, Any]) -> Any:
        return Fail("secret-note") if order["card"] == "secret-bad" else order

    @app.step("shop/ask")
    async def ask(ctx: Any, order: dict[str, Any]) -> Any:
        return order if ctx.switch("go") else Wait("go", at_most="1h")

    @app.step("shop/split")
    async def split(ctx: Any, order: dict[str, Any]) -> Any:
        return Parallel([Child("quiet", order), Child("shown", order)])

    steps = ["shop/take", "shop/ask"]
    app.pipeline("redacted", steps, redact=["/card"])
    app.pipeline("headers", steps, record="headers")
    app.pipeline("none", ["shop/take"], record="none")
    app.pipeline("split", ["shop/split"], record="headers")
    app.pipeline("quiet", ["shop/take"], startable=False, record="none")
    app.pipeline("shown", ["shop/take"], startable=False, redact=["/card"])
    return app


def test_record_log_lacks_data_that_a_pipeline_withholds(settings: Config, lake: Path) -> None:
    order = {"card": "secret-1", "cents": 5}
    with background_station(settings, app=shop()) as station, Waystation(station.url) as client:
        start = client.transactions.start
        waiting = [start(name, order, external_id=name) for name in ("redacted", "headers")]
        done = [
            start("none", order, external_id="secret-2"),
            start("none", {"card": "secret-bad"}),
            start("split", order),
        ]
        ended = [tx.wait("30s").status for tx in done]
        for tx in waiting:
            tx.set_switch("go", True)
        ended += [tx.wait("30s").status for tx in waiting]
        assert ended == ["success", "failed", "success", "success", "success"]
        assert client.pipelines.get("redacted").definition.redact == ["/card"]
        with store_access(settings) as access:
            with LogWriter(access.resolve()) as writer:
                log = repr(writer.command("XRANGE", keys.entries("tx", 0), "-", "+"))
            local_ingest(lake, access.resolve()).run()

    # The log has no such bytes, so the lake cannot have them
    assert "secret" not in log
    changes, steps = rows(lake, "transactions"), projected_rows(lake, "steps")
    started = {row["pipeline"]: row for row in changes if row["kind"] == "started"}
    assert {name: row["recorded"] for name, row in started.items()} == {
        "redacted": "redacted",
        "headers": "headers",
        "none": "none",
        "split": "headers",
        "quiet": "none",
        "shown": "redacted",
    }
    kept = started["redacted"]
    assert (kept["data"], kept["external_id"]) == ('{"card":"[redacted]","cents":5}', "redacted")
    assert (started["headers"]["data"], started["headers"]["metadata"]) == (None, None)
    assert started["headers"]["external_id"] == "headers"
    assert (started["none"]["external_id"], started["none"]["data"]) == (None, None)
    assert started["shown"]["data"] == '{"card":"[redacted]","cents":5}'
    ends = {row["transaction_id"]: row for row in changes if row["kind"] == "finished"}
    assert ends[waiting[0].id]["output"] == '{"card":"[redacted]","cents":5}'
    assert ends[waiting[1].id]["output"] is None
    slept = [row for row in changes if row["kind"] == "slept"]
    assert slept, "two have waited"
    assert {(row["snapshot"], row["switch"]) for row in slept} == {(None, "go")}
    # A transaction that is not recorded has states and no steps
    assert ends[done[1].id]["status"] == "failed"
    recorded = {row["transaction_id"] for row in steps}
    assert recorded >= {waiting[0].id, waiting[1].id, done[2].id}
    assert not recorded & {done[0].id, done[1].id, started["quiet"]["transaction_id"]}
