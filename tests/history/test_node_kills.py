"""F-05: a node that is killed while its Spark works leaves a lake that the next one completes."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from deltalake import DeltaTable

from tests.cli.conftest import running_station
from tests.helpers.processes import ended
from tests.helpers.waiting import eventually_sync
from tests.history.ingest_process import STAGES
from tests.history.lake_check import require_whole
from waystation import Waystation
from waystation.history.log_reader import LogReader
from waystation.history.status import read_status, wait_for_ingest

#: A batch in progress may take 20 s, and the end of Spark some more on a busy machine.
END_S = 90.0


@contextmanager
def node(folder: Path, stage: str) -> Iterator[tuple[subprocess.Popen[str], str, str]]:
    """Run a node; yield its process, its URL and the URL of its store."""
    with subprocess.Popen(
        [sys.executable, "-m", "tests.history.node_process", str(folder), stage],
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            url, store = process.stdout.readline().split()
            yield process, url, f"unix://{store}"
        finally:
            process.terminate()
            process.wait(timeout=60)


def live(client: Waystation, first: int, count: int) -> None:
    """Produce, publish and send some messages each."""
    for number in range(first, first + count):
        client.topics.produce("orders", {"n": number}, id=f"m-{number}")
        client.channels.publish("room", {"n": number})
        client.pools.send("agents", "key", {"n": number})


def ids_in(lake: Path) -> list[str]:
    table = DeltaTable(str(lake / "messages")).to_pyarrow_table(
        filters=[("row_state", "=", "live")]
    )
    return sorted(table.column("id").to_pylist())


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(1200)
def test_node_that_is_killed_at_any_stage_of_an_ingest_neither_loses_nor_doubles(
    tmp_path: Path,
) -> None:
    stages = ("starting", *(stage for stage in STAGES if stage != "compacted"))
    for done, stage in enumerate(stages):
        with node(tmp_path, stage) as (process, url, _):
            with Waystation(url) as client:
                if not done:
                    client.topics.create("orders", partitions=2)
                    client.pools.create("agents")
                live(client, 5 * done, 5)
            assert process.wait(timeout=200) == -signal.SIGKILL, stage
        # Both end by themselves, and do not disturb the next node.
        for child in map(int, (tmp_path / f"child-{stage}").read_text().split()):
            assert not child or ended(child, seconds=END_S), stage
    with node(tmp_path, "nothing") as (_, url, store):
        with Waystation(url) as client:
            live(client, 5 * len(stages), 5)
        with LogReader(store) as logs:
            eventually_sync(lambda: logs.use(read_status).public.state != "off")
            assert logs.use(wait_for_ingest).failures == 0
        lake = tmp_path / "data" / "lake"
        require_whole(lake, store)
    assert ids_in(lake) == sorted(f"m-{number}" for number in range(5 * len(stages) + 5))


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(400)
def test_first_rows_of_dev_are_in_the_lake_soon_after_the_first_message(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The promise is 30 s on an idle machine; the bound leaves room for one that runs tests."""
    with running_station(tmp_path, "dev", "--port", "0", history="") as station:
        with Waystation(station["url"]) as client:
            client.topics.create("orders")
            client.topics.produce("orders", {"n": 1}, id="m-1")
        began_s = time.monotonic()
        lake = tmp_path / ".waystation" / "lake" / "messages"
        eventually_sync(
            lambda: DeltaTable.is_deltatable(str(lake)) and ids_in(lake.parent) == ["m-1"],
            timeout=300,
        )
        took_s = time.monotonic() - began_s
    with capsys.disabled():
        sys.stdout.write(f"\nfirst row in the lake after {took_s:.1f} s\n")
