"""The embedded server and its append-only file: torn, spoiled, or simply large."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import pytest

from tests.helpers.processes import ended
from tests.helpers.store_faults import grow, newest_part, spoil, tear
from waystation.errors import StoreRefusedError
from waystation.store.embedded.server import EmbeddedServer
from waystation.store.embedded.supervisor import ask

#: So many commands take the server long enough to be seen loading.
MANY = 300_000


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder in which a server has run and stopped in order, leaving two values."""
    folder = tmp_path / "store"
    with EmbeddedServer(folder) as server:
        ask(server.address.path, b"SET first 1")
        ask(server.address.path, b"SET second 2")
        process_id = server.process_id
    assert ended(process_id)
    while not (folder / "clean").exists():
        time.sleep(0.005)
    return folder


def test_a_torn_tail_is_cut_off_and_reported(folder: Path) -> None:
    """F-08."""
    tear(folder)
    with EmbeddedServer(folder) as server:
        assert ask(server.address.path, b"GET first") == b"$1\r\n1\r\n"
        assert ask(server.address.path, b"GET second") == b"$-1\r\n"
        (note,) = server.notes
        assert "torn tail" in note


def test_a_file_spoiled_in_its_middle_is_refused_and_left_as_it_is(folder: Path) -> None:
    """F-08."""
    before = spoil(folder)
    with pytest.raises(StoreRefusedError, match=r"(?i)bad file format.*append only file"):
        EmbeddedServer(folder).start()
    assert newest_part(folder).read_bytes() == before
    # And again, with the same words: nothing was repaired behind our back
    with pytest.raises(StoreRefusedError, match=r"(?i)bad file format"):
        EmbeddedServer(folder).start()


def test_a_large_file_spoiled_in_its_middle_is_refused_after_it_began_to_load(
    folder: Path,
) -> None:
    """F-08: a server that loads already answers, which is not yet a start."""
    grow(folder, MANY)
    spoil(folder)
    with pytest.raises(StoreRefusedError, match=r"(?i)bad file format"):
        EmbeddedServer(folder).start()


def test_a_start_waits_until_the_data_is_there(folder: Path) -> None:
    grow(folder, MANY)
    with EmbeddedServer(folder) as server:
        assert ask(server.address.path, b"DBSIZE") == b":%d\r\n" % (MANY + 2)
        assert server.notes == []


def test_a_server_killed_while_it_loads_is_started_again(folder: Path) -> None:
    grow(folder, MANY)
    server = EmbeddedServer(folder)
    starting = threading.Thread(target=server.start)
    starting.start()
    while not (folder / "server.json").exists():
        time.sleep(0.001)
    killed = server.process_id
    while not ask(server.address.path, b"PING").startswith(b"-LOADING"):
        assert starting.is_alive(), "it loaded before anybody could look; make it load more"
        time.sleep(0.001)

    os.kill(killed, signal.SIGKILL)

    starting.join()
    try:
        assert server.process_id != killed
        assert ask(server.address.path, b"DBSIZE") == b":%d\r\n" % (MANY + 2)
        assert not server.refusal()
    finally:
        server.close()
