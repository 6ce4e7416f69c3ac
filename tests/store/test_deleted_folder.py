"""Deleted folders and lock files: the embedded server ends with its folder, and stays alone."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

from tests.helpers.processes import ended
from waystation.store.embedded.server import EmbeddedServer, supervisor


def test_server_ends_when_its_folder_is_deleted_after_the_last_close(
    tmp_path: Path,
) -> None:
    # The only user closes its handle.
    server = EmbeddedServer(tmp_path / "store")
    server.start()
    process, socket_path = server.process_id, server.address.path
    server.close()

    # Delete the folder before the supervisor checks its users.
    shutil.rmtree(tmp_path / "store", ignore_errors=True)

    # The server ends, and its socket is deleted.
    until = time.monotonic() + 10
    while Path(f"/proc/{process}").exists() or os.path.exists(socket_path):
        assert time.monotonic() < until, f"the server {process} outlived its folder"
        time.sleep(0.02)


def test_server_ends_when_its_folder_is_deleted_during_its_stop(
    tmp_path: Path,
) -> None:
    processes = []
    for number in range(8):
        folder = tmp_path / f"store-{number}"
        server = EmbeddedServer(folder)
        server.start()
        processes.append(server.process_id)
        server.close()
        # The supervisor checks ten times a second, so some folders are deleted before the check
        # and some during the stop.
        time.sleep(number * 0.015)
        shutil.rmtree(folder, ignore_errors=True)
    for process in processes:
        assert ended(process), f"the server {process} outlived its folder"


def test_server_with_deleted_lock_files_remains_the_only_one(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    with EmbeddedServer(folder) as first:
        process = first.process_id
        for lock in folder.glob("*.lock"):
            lock.unlink()

        # One process starts immediately, another after the supervisor created the files again.
        with EmbeddedServer(folder) as second:
            assert second.process_id == process
            assert supervisor.ask(second.address.path, b"SET shared yes").startswith(b"+OK")
            until = time.monotonic() + 20
            while not all((folder / f"{name}.lock").exists() for name in ("users", "keeper")):
                assert time.monotonic() < until
                time.sleep(0.02)
            with EmbeddedServer(folder) as third:
                assert third.process_id == process

        # All handles share one server, which runs until the last one is closed.
        assert b"yes" in supervisor.ask(first.address.path, b"GET shared")
        assert first.process_id == process
    assert ended(process)
