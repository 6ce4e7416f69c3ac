"""The embedded server does not outlive its folder: a deleted one leaves no process behind."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

from tests.helpers.processes import ended
from waystation.store.embedded.server import EmbeddedServer, supervisor


def test_a_server_ends_when_its_folder_is_deleted_right_after_the_last_user_left(
    tmp_path: Path,
) -> None:
    # Given a running server whose only user leaves
    server = EmbeddedServer(tmp_path / "store")
    server.start()
    process, socket_path = server.process_id, server.address.path
    server.close()

    # When its folder is gone before the keeper has looked
    shutil.rmtree(tmp_path / "store", ignore_errors=True)

    # Then neither the server nor its socket stays
    until = time.monotonic() + 10
    while Path(f"/proc/{process}").exists() or os.path.exists(socket_path):
        assert time.monotonic() < until, f"the server {process} outlived its folder"
        time.sleep(0.02)


def test_a_server_ends_also_when_its_folder_is_deleted_in_the_middle_of_its_stop(
    tmp_path: Path,
) -> None:
    processes = []
    for number in range(8):
        folder = tmp_path / f"store-{number}"
        server = EmbeddedServer(folder)
        server.start()
        processes.append(server.process_id)
        server.close()
        # The keeper looks ten times a second: some are deleted before it looks, some while it acts
        time.sleep(number * 0.015)
        shutil.rmtree(folder, ignore_errors=True)
    for process in processes:
        assert ended(process), f"the server {process} outlived its folder"


def test_lock_files_deleted_under_a_running_server_allow_no_second_server(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    with EmbeddedServer(folder) as first:
        process = first.process_id
        for lock in folder.glob("*.lock"):
            lock.unlink()

        # When another process comes at once, and one after the keeper has noticed
        with EmbeddedServer(folder) as second:
            assert second.process_id == process
            assert supervisor.ask(second.address.path, b"SET shared yes").startswith(b"+OK")
            until = time.monotonic() + 20
            while not all((folder / f"{name}.lock").exists() for name in ("users", "keeper")):
                assert time.monotonic() < until
                time.sleep(0.02)
            with EmbeddedServer(folder) as third:
                assert third.process_id == process

        # Then it is the server of all of them until the last one leaves
        assert b"yes" in supervisor.ask(first.address.path, b"GET shared")
        assert first.process_id == process
    assert ended(process)
