"""`waystation history forget` as a user runs it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from tests.cli.conftest import Run, run  # noqa: F401 (a fixture)
from tests.history.local_ingest import local_ingest
from tests.history.log_writer import LogWriter, envelopes
from tests.history.quick_spark import QUICK
from waystation.config import Config
from waystation.history.lease import history_lease
from waystation.history.store_access import store_access
from waystation.logs.operations import LOG

ORDERS = "t.default.orders.0"


@pytest.fixture
def url(settings: Config) -> Iterator[str]:
    """Return the store, with three messages of `ann` in the lake, and one of `bob`."""
    with store_access(settings) as access:
        with LogWriter(access.resolve()) as writer:
            writer.flush()
            writer.create(ORDERS)
            writer.append(ORDERS, envelopes(3, group="ann"))
            writer.append(ORDERS, envelopes(1, first=3, group="bob"))
        local_ingest(Path(settings.data) / "lake", access.resolve()).run()
        yield access.resolve()


@pytest.fixture
def forget(run: Run, settings: Config) -> Any:  # noqa: F811
    return partial(run, "history", "forget", "--data", settings.data)


def payloads(settings: Config) -> list[bytes | None]:
    table = DeltaTable(f"{settings.data}/lake/messages").to_pyarrow_table()
    return list(table.sort_by("log_offset").column("payload").to_pylist())


def test_forget_command_counts_asks_and_blanks(forget: Any, settings: Config, url: str) -> None:
    some = ("--group", "ann", "--no-ingest")
    planned = forget(*some, "--dry-run", "--json")
    asked = forget(*some)
    assert payloads(settings).count(None) == 0
    done = forget(*some, "--yes")
    again = forget(*some, "--yes", "--json")

    assert json.loads(planned.stdout)["rows"] == {"messages": 3}
    assert asked.returncode == 1
    assert "Delete the payloads of 3 rows permanently?" in asked.stderr
    assert (done.returncode, payloads(settings)) == (0, [None, None, None, b'{"n":3}'])
    assert "3 rows are blank, and 1 files are deleted." in done.stdout
    assert "Copies outside of the lake stay" in done.stderr
    assert json.loads(again.stdout)["rows"] == {}
    # The operation is recorded, and does not name the person
    with LogWriter(url) as writer:
        entries = writer.command("XRANGE", f"{{{LOG}.0}}:log", "-", "+")
    assert b"forget" in repr(entries).encode()
    assert "ann" not in repr(entries)


def test_forget_command_is_refused_without_one_person_and_beside_another(
    forget: Any, url: str
) -> None:
    for wrong in (
        (),
        ("--group", "a", "--external-id", "b"),
        ("--external-id", "b", "--topic", "t"),
    ):
        assert forget(*wrong).returncode == 2
    with history_lease(url, "forget"):
        refused = forget("--group", "ann", "--no-ingest")
    assert refused.returncode == 6
    assert "Another forget is running." in refused.stderr


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_forget_command_ingests_what_the_logs_have_before(
    forget: Any, settings: Config, url: str
) -> None:
    with LogWriter(url) as writer:
        writer.append(ORDERS, envelopes(1, first=4, group="ann"))

    done = forget(
        *("--group", "ann", "--yes", "--json", "--master", "local[1]"), seconds_max=250, **QUICK
    )

    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["rows"] == {"messages": 4}
    assert payloads(settings) == [None, None, None, b'{"n":3}', None]
