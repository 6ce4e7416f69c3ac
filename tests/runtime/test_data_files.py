"""Permissions of the data directory: new and existing files are private to their owner."""

from __future__ import annotations

import os
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from waystation.archive import archive_at
from waystation.catalogue import catalogue_at
from waystation.config import Config
from waystation.errors import SettingsError
from waystation.history.process import child_environment
from waystation.runtime import data_files
from waystation.store.embedded.server import EmbeddedServer
from waystation.store.plan import server_plan


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def open_to_others(folder: Path) -> list[str]:
    """Return the files and folders below `folder` that other users have a permission on."""
    return sorted(
        f"{path.relative_to(folder)} {mode(path):04o}"
        for path in folder.rglob("*")
        if mode(path) & 0o077
    )


@pytest.fixture
def data(tmp_path: Path) -> Iterator[Path]:
    """Create a data directory with the permissions of `mkdir`."""
    before = os.umask(0o022)
    try:
        (folder := tmp_path / "data").mkdir(mode=0o755)
        yield folder
    finally:
        os.umask(before)


async def test_database_files_in_a_readable_directory_are_private(data: Path) -> None:
    catalogue, archive = catalogue_at("", folder=data), archive_at("", folder=data)
    await catalogue.open()
    await archive.open()
    try:
        names = {path.name for path in data.iterdir()}
        assert {"catalogue.db", "catalogue.db-wal", "archive.db", "archive.db-shm"} <= names
        assert open_to_others(data) == []
    finally:
        await archive.close()
        await catalogue.close()


async def test_database_files_of_an_earlier_release_are_tightened(data: Path) -> None:
    connection = sqlite3.connect(data / "archive.db")
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("CREATE TABLE earlier (x)")
    assert len(open_to_others(data)) == 3

    archive = archive_at("", folder=data)
    await archive.open()
    try:
        assert open_to_others(data) == []
    finally:
        await archive.close()
        connection.close()


async def test_database_file_of_another_owner_is_refused(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (data / "archive.db").touch(mode=0o644)

    def refuse(path: Path, mode: int) -> None:
        raise PermissionError(1, "Operation not permitted", str(path))

    monkeypatch.setattr(Path, "chmod", refuse)
    archive = archive_at("", folder=data)
    try:
        with pytest.raises(SettingsError) as raised:
            await archive.open()
    finally:
        await archive.close()

    assert "archive.db" in raised.value.message
    assert "0644" in raised.value.message
    assert "chmod go=" in raised.value.hint


async def test_second_connection_to_a_database_keeps_the_locks_of_the_first(data: Path) -> None:
    # Closing a second descriptor of the file would release all locks of this process.
    catalogue = catalogue_at("", folder=data)
    await catalogue.open()
    holder = sqlite3.connect(data / "catalogue.db", isolation_level=None)
    holder.execute("PRAGMA locking_mode = EXCLUSIVE")
    await catalogue.close()
    holder.execute("BEGIN EXCLUSIVE")
    data_files.create_private(data / "catalogue.db")
    data_files.tighten([data / "catalogue.db"])
    other = "import sqlite3; sqlite3.connect('catalogue.db', timeout=0).execute('BEGIN IMMEDIATE')"
    done = subprocess.run(
        [sys.executable, "-c", other], cwd=data, capture_output=True, text=True, check=False
    )
    holder.close()

    assert "database is locked" in done.stderr


def test_store_folder_that_others_can_read_is_tightened(data: Path) -> None:
    folder = data / "store"
    (folder / "appendonlydir").mkdir(parents=True)
    (folder / "appendonlydir" / "kept.by.a.backup").write_text("copied by hand")
    (folder / "keeper.log").write_text("")

    with EmbeddedServer(folder, durability="disk"):
        assert mode(folder) == 0o700
        assert open_to_others(folder) == []


def test_files_of_the_embedded_store_are_private(data: Path) -> None:
    folder = data / "store"
    with EmbeddedServer(folder, durability="disk") as server:
        assert {"keeper.log", "always", "socket"} <= {path.name for path in folder.iterdir()}
        assert mode(Path(server.address.path)) & 0o077 == 0
        assert open_to_others(data) == []


def test_file_with_socket_path_of_store_is_private(data: Path) -> None:
    server_plan(data, "memory")

    assert mode(data / "socket") == 0o600


def test_settings_of_the_history_process_are_private(data: Path) -> None:
    child_environment(Config(data=str(data)), {})

    assert open_to_others(data) == []


def test_write_private_over_a_readable_file_tightens_it_first(data: Path) -> None:
    file = data / "store-url"
    file.write_text("redis://")
    assert mode(file) == 0o644

    data_files.write_private(file, "redis://:secret@db")

    assert mode(file) == 0o600
    assert file.read_text() == "redis://:secret@db"


def test_tighten_repeated_writes_one_log_line_per_change(
    data: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = data / "archive.db"
    file.touch(mode=0o644)

    data_files.tighten([file, data / "missing"])
    data_files.tighten([file])

    assert [record.getMessage() for record in caplog.records] == ["permissions tightened"]
    assert mode(file) == 0o600


def test_tighten_tree_does_not_follow_links(data: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.touch(mode=0o644)
    (data / "link").symlink_to(outside)

    data_files.tighten_tree(data)

    assert mode(outside) == 0o644
    assert mode(data) == 0o700


async def test_data_directory_that_others_can_write_loses_that_permission(data: Path) -> None:
    data.chmod(0o777)
    catalogue = catalogue_at("", folder=data)
    await catalogue.open()
    await catalogue.close()

    assert mode(data) == 0o755
