"""History over Spark Connect: a separate server, reached by its URL, without Java here."""

from __future__ import annotations

import json
import socket
import subprocess
from pathlib import Path

import pytest
from deltalake import DeltaTable

from tests.cli.conftest import clean_environment, command
from tests.helpers.server import background_station
from tests.helpers.spark_cluster import connect_server
from waystation import App, Waystation
from waystation.client import NewMessage
from waystation.config import Config
from waystation.errors import HistoryMissingError, SparkStartError
from waystation.history import session
from waystation.history.session import connect_session

MESSAGES = 500
SECONDS_MAX = 250


def history(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command("history", *arguments),
        # This process has no Java, and needs none.
        env={**clean_environment(), "JAVA_HOME": "/nowhere"},
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
    return port


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_server_of_spark_connect_ingests_audits_and_answers(
    settings: Config, tmp_path: Path
) -> None:
    app = App()

    @app.step("pay")
    async def pay(ctx: object, order: dict[str, int]) -> dict[str, int]:
        return order

    app.pipeline("order", ["pay"])
    folder = tmp_path / "server"
    folder.mkdir()
    with (
        connect_server(folder, free_port()) as url,
        background_station(settings, app=app) as station,
        Waystation(station.url) as client,
    ):
        client.topics.create("orders", partitions=2)
        client.topics.produce_many("orders", [NewMessage({"n": n}) for n in range(MESSAGES)])
        assert client.transactions.start("order", {"n": 1}).wait("30s").status == "success"
        where = ("--data", settings.data, "--master", url, "--json")

        ingested = history("ingest", *where)
        again = history("ingest", *where)
        audited = history("audit", *where)
        asked = history("sql", "select count(*) n from waystation.messages", *where)

    assert ingested.returncode == 0, ingested.stderr
    assert json.loads(ingested.stdout)["rows"] > MESSAGES
    assert json.loads(again.stdout)["rows"] == 0
    rows = DeltaTable(f"{settings.data}/lake/messages").to_pyarrow_table()
    assert sorted(rows["payload"].to_pylist()) == sorted(b'{"n":%d}' % n for n in range(MESSAGES))
    assert audited.returncode == 0, audited.stdout + audited.stderr
    checked = json.loads(audited.stdout)["checked"]
    assert (checked["entries of messages"], checked["transactions"]) == (MESSAGES, 1)
    assert asked.stdout == f'{{"n":{MESSAGES}}}\n', asked.stderr


def test_a_server_that_is_not_there_is_told_at_once() -> None:
    with pytest.raises(SparkStartError, match=r"No Spark Connect server answers at 127\.0\.0\.1:"):
        connect_session(f"sc://127.0.0.1:{free_port()}/;user_id=me")


def test_what_is_missing_for_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "_CONNECT_PACKAGES", ("grpc", "no_such_package", "none.such"))

    with pytest.raises(HistoryMissingError, match=r"needs no_such_package and none\.such") as told:
        connect_session("sc://127.0.0.1")

    assert told.value.hint == "pip install 'waystation[connect]'"
