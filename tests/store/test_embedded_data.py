"""Embedded server and its append-only file: torn ends, damage, and long loading."""

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

#: Number of commands whose loading takes long enough for a test to observe it.
MANY = 300_000


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return the folder of a server that stopped cleanly and stored two values."""
    folder = tmp_path / "store"
    with EmbeddedServer(folder) as server:
        ask(server.address.path, b"SET first 1")
        ask(server.address.path, b"SET second 2")
        process_id = server.process_id
    assert ended(process_id)
    while not (folder / "clean").exists():
        time.sleep(0.005)
    return folder


def test_server_with_torn_tail_starts_without_it_and_adds_note(folder: Path) -> None:
    # F-08: the server truncates an incomplete command at the end of the file.
    tear(folder)
    with EmbeddedServer(folder) as server:
        assert ask(server.address.path, b"GET first") == b"$1\r\n1\r\n"
        assert ask(server.address.path, b"GET second") == b"$-1\r\n"
        (note,) = server.notes
        assert "ended within a command" in note


def test_start_with_damage_in_middle_of_file_is_refused_and_file_unchanged(folder: Path) -> None:
    # F-08: data before the damage is not discarded silently.
    before = spoil(folder)
    with pytest.raises(StoreRefusedError, match=r"(?i)bad file format.*append only file"):
        EmbeddedServer(folder).start()
    assert newest_part(folder).read_bytes() == before
    # A second start fails in the same way, because nothing repaired the file.
    with pytest.raises(StoreRefusedError, match=r"(?i)bad file format"):
        EmbeddedServer(folder).start()


def test_server_with_damage_found_during_load_is_refused(
    folder: Path,
) -> None:
    # F-08: a server that is loading answers, but its start has not succeeded yet.
    grow(folder, MANY)
    spoil(folder)
    with pytest.raises(StoreRefusedError, match=r"(?i)bad file format"):
        EmbeddedServer(folder).start()


def test_server_start_waits_until_data_is_loaded(folder: Path) -> None:
    grow(folder, MANY)
    with EmbeddedServer(folder) as server:
        assert ask(server.address.path, b"DBSIZE") == b":%d\r\n" % (MANY + 2)
        assert server.notes == []


def test_server_killed_during_load_is_restarted(folder: Path) -> None:
    grow(folder, MANY)
    server = EmbeddedServer(folder)
    starting = threading.Thread(target=server.start)
    starting.start()
    while not (folder / "server.json").exists():
        time.sleep(0.001)
    killed = server.process_id
    while not ask(server.address.path, b"PING").startswith(b"-LOADING"):
        assert starting.is_alive(), "the server loaded too fast for this test; increase MANY"
        time.sleep(0.001)

    os.kill(killed, signal.SIGKILL)

    starting.join()
    try:
        assert server.process_id != killed
        assert ask(server.address.path, b"DBSIZE") == b":%d\r\n" % (MANY + 2)
        assert not server.refusal()
    finally:
        server.close()
