"""Check and repair of the embedded store's append-only files, and `waystation store check`."""

from __future__ import annotations

import errno
import json
import os
import pty
import re
import shutil
import stat
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import clean_environment, command
from tests.helpers.processes import ended
from tests.helpers.store_faults import newest_part, spoil, tear
from waystation.errors import (
    StoreError,
    StoreFileDamagedError,
    StoreInUseError,
    StoreRefusedError,
)
from waystation.store.embedded import repair
from waystation.store.embedded.repair import (
    StoreCheck,
    check_files,
    repair_files,
    stopped_store,
)
from waystation.store.embedded.server import EmbeddedServer
from waystation.store.embedded.supervisor import ask

VALUES = 20


def write_and_stop(folder: Path, *commands: bytes) -> None:
    with EmbeddedServer(folder) as server:
        for each in commands:
            assert not ask(server.address.path, each).startswith(b"-")
            if each == b"BGREWRITEAOF":
                wait_for_rewrite(server.address.path)
        process_id = server.process_id
    assert ended(process_id)
    while not (folder / "clean").exists():
        time.sleep(0.005)


def wait_for_rewrite(path: str) -> None:
    until = time.monotonic() + 20
    while b"aof_rewrite_in_progress:0\r\naof_rewrite_scheduled:0" not in ask(path, b"INFO all"):
        assert time.monotonic() < until
        time.sleep(0.02)


def sets(first: int, count: int) -> list[bytes]:
    return [b"SET key:%03d value" % number for number in range(first, first + count)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Create a stopped store: five values in its base file, the others in its incremental file."""
    folder = tmp_path / "data" / "store"
    write_and_stop(folder, *sets(0, 5), b"BGREWRITEAOF", *sets(5, VALUES))
    return folder


def part(folder: Path, pattern: str) -> Path:
    (found,) = (folder / "appendonlydir").glob(pattern)
    return found


def content(folder: Path) -> dict[str, bytes]:
    """Return the content of the store's files by name, as the server reads them."""
    directory = folder / "appendonlydir"
    return {file.name: file.read_bytes() for file in sorted(directory.iterdir())}


def copies_in(folder: Path) -> list[Path]:
    return sorted((folder / "appendonlydir").glob("*.damaged-*"))


def check_and_repair(folder: Path) -> tuple[StoreCheck, list[Path]]:
    with stopped_store(folder):
        check = check_files(folder)
        copies = repair_files(folder, check)
        assert check_files(folder).damages == []
    return check, copies


def keys_in(folder: Path) -> list[str]:
    """Start the server and return its keys. Fail if the server truncates its append-only file."""
    with EmbeddedServer(folder) as server:
        found = re.findall(rb"key:\d+", ask(server.address.path, b"KEYS *"))
        assert not [note for note in server.notes if "torn" in note]
        process_id = server.process_id
    assert ended(process_id)
    return sorted(key.decode() for key in found)


def keys(count: int) -> list[str]:
    return [f"key:{number:03d}" for number in range(count)]


def keys_before(folder: Path, offset: int) -> list[str]:
    """Return the keys of the base file, and those of the incremental file before an offset."""
    before = newest_part(folder).read_bytes()[:offset]
    return keys(5 + len(re.findall(rb"key:\d+", before)))


# -- Check -----------------------------------------------------------------------------------


def test_check_of_healthy_store_reports_files_and_no_damage(folder: Path) -> None:
    with stopped_store(folder):
        found = check_files(folder)
    assert found.files == ["appendonly.aof.2.base.rdb", "appendonly.aof.2.incr.aof"]
    assert found.damages == []


def test_check_of_store_without_data_reports_no_files(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    with stopped_store(tmp_path / "store"):
        assert check_files(tmp_path / "store").files == []


def test_check_of_running_store_is_refused(folder: Path) -> None:
    with EmbeddedServer(folder) as server:
        with pytest.raises(StoreInUseError, match="A process uses the embedded store"):
            stopped_store(folder).__enter__()
        for lock in folder.glob("*.lock"):
            lock.unlink()
        # Without its lock files the server still has the lock on its folder.
        with pytest.raises(StoreInUseError):
            stopped_store(folder).__enter__()
        assert ask(server.address.path, b"PING") == b"+PONG\r\n"
        process_id = server.process_id
    assert ended(process_id)


def test_start_during_check_waits_for_its_end(folder: Path) -> None:
    with stopped_store(folder):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("waystation.store.embedded.server._WAIT_SECONDS_MAX", 0.3)
            with pytest.raises(StoreError, match="the store to stop"):
                EmbeddedServer(folder).start()
        assert not (folder / "server.json").exists()
    assert keys_in(folder) == keys(25)


# -- Repair ----------------------------------------------------------------------------------


def test_repair_of_torn_tail_keeps_all_complete_commands(folder: Path) -> None:
    tear(folder)
    before = newest_part(folder).read_bytes()

    found, copies = check_and_repair(folder)

    (damage,) = found.damages
    assert damage.incomplete
    assert not found.loses_writes
    assert damage.offset + damage.cut_bytes == damage.size_bytes == len(before)
    assert 0 < damage.cut_bytes < 50
    (copy,) = copies
    assert copy.read_bytes() == before
    assert stat.S_IMODE(copy.stat().st_mode) == 0o600
    assert keys_in(folder) == keys(24)


def test_repair_of_torn_transaction_removes_all_of_it(folder: Path) -> None:
    with newest_part(folder).open("ab") as file:
        file.write(b"*1\r\n$5\r\nMULTI\r\n*3\r\n$3\r\nSET\r\n$7\r\nkey:900\r\n$1\r\nx\r\n")
    found, _ = check_and_repair(folder)
    assert found.damages[0].incomplete
    assert keys_in(folder) == keys(25)


@pytest.mark.parametrize("tail", [b"\0" * 4096, b"*3\r\n$3\r\nSET\r\n$x\r\n"])
def test_repair_of_invalid_tail_keeps_everything_before_it(folder: Path, tail: bytes) -> None:
    size = newest_part(folder).stat().st_size
    with newest_part(folder).open("ab") as file:
        file.write(tail)
    found, _ = check_and_repair(folder)
    assert (found.damages[0].offset, found.damages[0].cut_bytes) == (size, len(tail))
    assert found.loses_writes
    assert keys_in(folder) == keys(25)


def test_repair_of_damaged_middle_keeps_everything_before_it(folder: Path) -> None:
    before = spoil(folder)
    place = before.index(b"!spoiled!")

    found, copies = check_and_repair(folder)

    (damage,) = found.damages
    assert found.loses_writes
    assert damage.offset == place
    assert damage.cut_bytes == len(before) - place
    assert copies[0].read_bytes() == before
    expected = keys_before(folder, place)
    assert 5 < len(expected) < 25
    assert keys_in(folder) == expected


def test_repair_after_refused_start_cuts_at_unknown_command(folder: Path) -> None:
    file = newest_part(folder)
    file.write_bytes(re.sub(rb"\$3\r\nSET(?=\r\n\$7\r\nkey:010)", rb"$3\r\nSEV", file.read_bytes()))
    with pytest.raises(StoreFileDamagedError, match="unknown command 'SEV'"):
        EmbeddedServer(folder).start()

    found, _ = check_and_repair(folder)

    assert found.damages[0].problem == "The command 'SEV' does not exist."
    assert keys_in(folder) == keys(10)


def test_repair_of_earlier_incremental_file_removes_later_ones(folder: Path) -> None:
    directory = folder / "appendonlydir"
    later = b"*3\r\n$3\r\nSET\r\n$7\r\nkey:900\r\n$1\r\nx\r\n"
    (directory / "appendonly.aof.3.incr.aof").write_bytes(later)
    with (directory / "appendonly.aof.manifest").open("a") as manifest:
        manifest.write("file appendonly.aof.3.incr.aof seq 3 type i\n")
    assert keys_in(folder) == [*keys(25), "key:900"]
    file = directory / "appendonly.aof.2.incr.aof"
    size = file.stat().st_size
    file.write_bytes(file.read_bytes() + b"!spoiled!")

    found, copies = check_and_repair(folder)

    assert found.removed == ["appendonly.aof.3.incr.aof"]
    assert found.damages[0].offset == size
    assert found.cut_bytes > len(later)
    assert "appendonly.aof.3.incr.aof.damaged-1" in {copy.name for copy in copies}
    assert keys_in(folder) == keys(25)


def test_repair_without_listed_incremental_file_starts_from_base_file(folder: Path) -> None:
    newest_part(folder).unlink()
    with pytest.raises(StoreFileDamagedError):
        EmbeddedServer(folder).start()
    found, _ = check_and_repair(folder)
    assert found.damages[0].problem == "The file is missing."
    assert found.loses_writes
    assert keys_in(folder) == keys(5)


# -- Manifest --------------------------------------------------------------------------------


@pytest.mark.parametrize("text", [None, "", "garbage\n", "file appendonly.aof.2.base.rdb seq"])
def test_repair_of_damaged_manifest_rebuilds_it(folder: Path, text: str | None) -> None:
    manifest = folder / "appendonlydir" / "appendonly.aof.manifest"
    listed = manifest.read_text()
    if text is None:
        manifest.unlink()
    else:
        manifest.write_text(text)
    with pytest.raises(StoreFileDamagedError, match="check --fix"):
        EmbeddedServer(folder).start()

    found, copies = check_and_repair(folder)

    assert [each.file for each in found.damages] == ["appendonly.aof.manifest"]
    assert not found.loses_writes
    assert manifest.read_text() == listed
    assert [copy.read_text() for copy in copies] == ([] if text is None else [text])
    assert keys_in(folder) == keys(25)


def test_repair_of_damaged_manifest_and_middle_repairs_both(folder: Path) -> None:
    before = spoil(folder)
    (folder / "appendonlydir" / "appendonly.aof.manifest").write_text("")
    found, _ = check_and_repair(folder)
    assert len(found.damages) == 2
    assert keys_in(folder) == keys_before(folder, before.index(b"!spoiled!"))


def test_repair_of_manifest_with_two_base_files_is_refused(folder: Path) -> None:
    # Both base files contain the early commands, and only the manifest names the current one.
    directory = folder / "appendonlydir"
    shutil.copy(directory / "appendonly.aof.2.base.rdb", directory / "appendonly.aof.1.base.rdb")
    (directory / "appendonly.aof.manifest").unlink()
    assert_not_repairable(folder, "The manifest is missing.")


def test_repair_of_manifest_with_files_older_than_base_is_refused(folder: Path) -> None:
    # A rewrite left this file. The base file contains its commands already.
    directory = folder / "appendonlydir"
    old = directory / "appendonly.aof.1.incr.aof"
    old.write_bytes(b"*2\r\n$4\r\nINCR\r\n$1\r\nn\r\n")
    os.utime(old, ns=(0, 0))
    (directory / "appendonly.aof.manifest").write_text("garbage\n")
    assert_not_repairable(folder, "The manifest is not valid.")


# -- Base file -------------------------------------------------------------------------------


def assert_not_repairable(folder: Path, problem: str) -> None:
    before = content(folder)
    with stopped_store(folder):
        found = check_files(folder)
        assert not found.repairable
        assert problem in found.damages[0].problem
        with pytest.raises(StoreFileDamagedError, match=r"cannot be repaired.*from a backup"):
            repair_files(folder, found)
    assert content(folder) == before, "nothing was changed"


def test_repair_of_damaged_base_file_is_refused(folder: Path) -> None:
    base = part(folder, "*.base.rdb")
    bytes_ = bytearray(base.read_bytes())
    bytes_[-15] ^= 0xFF
    base.write_bytes(bytes_)
    assert_not_repairable(folder, "The snapshot is not valid")
    with pytest.raises(StoreFileDamagedError, match="check --fix"):
        EmbeddedServer(folder).start()


@pytest.mark.parametrize("size", [0, 60])
def test_repair_of_truncated_base_file_is_refused(folder: Path, size: int) -> None:
    os.truncate(part(folder, "*.base.rdb"), size)
    assert_not_repairable(folder, "The snapshot is not valid")
    with pytest.raises(StoreFileDamagedError, match="check --fix"):
        EmbeddedServer(folder).start()


def test_repair_of_base_file_with_invalid_end_is_refused(folder: Path) -> None:
    with part(folder, "*.base.rdb").open("ab") as file:
        file.write(b"garbage")
    assert_not_repairable(folder, "The snapshot is followed by invalid bytes.")


def test_repair_without_base_file_is_refused(folder: Path) -> None:
    part(folder, "*.base.rdb").unlink()
    assert_not_repairable(folder, "The base file is missing.")


# -- Crashes ---------------------------------------------------------------------------------


class CrashError(BaseException):
    """A crash of the process at a change of a file."""


#: All functions that change a file, in the module and in the libraries that it uses.
CHANGES = (
    (os, "fsync"),
    (shutil, "copyfileobj"),
    (repair, "_set_aside"),
    (repair, "_truncate"),
    (Path, "rename"),
    (Path, "replace"),
    (Path, "unlink"),
)


@pytest.fixture
def damaged(folder: Path) -> Path:
    """Create a store whose repair needs every step: copies, a removal, a manifest and a cut."""
    directory = folder / "appendonlydir"
    (directory / "appendonly.aof.3.incr.aof").write_bytes(b"*1\r\n$4\r\nPING\r\n")
    with (directory / "appendonly.aof.manifest").open("a") as manifest:
        manifest.write("file appendonly.aof.3.incr.aof seq 3 type i\n")
    with (directory / "appendonly.aof.2.incr.aof").open("ab") as file:
        file.write(b"!spoiled!")
    return folder


def crashing_repair(folder: Path, at: int, *, after: bool) -> bool:
    """Repair a damaged folder, and crash at file change number `at`.

    `after` False: crash before the change; True: crash after it. Return False if the repair ended
    with fewer changes.
    """
    count = 0

    def counted(function: object) -> object:
        def call(*arguments: object, **options: object) -> object:
            nonlocal count
            count += 1
            if count == at and not after:
                raise CrashError
            result = function(*arguments, **options)  # type: ignore[operator]
            if count == at and after:
                raise CrashError
            return result

        return call

    with pytest.MonkeyPatch.context() as patch:
        for owner, name in CHANGES:
            patch.setattr(owner, name, counted(getattr(owner, name)))
        try:
            with stopped_store(folder):
                repair_files(folder, check_files(folder))
        except CrashError:
            return True
    return False


@pytest.mark.parametrize("after", [False, True])
def test_repair_that_crashed_is_completed_by_the_next_one(damaged: Path, after: bool) -> None:
    before = content(damaged)
    backup = damaged.with_name("backup")
    shutil.copytree(damaged, backup)
    at = 1
    while True:
        shutil.rmtree(damaged)
        shutil.copytree(backup, damaged)
        crashed = crashing_repair(damaged, at, after=after)
        with stopped_store(damaged):
            if (check := check_files(damaged)).damages:
                repair_files(damaged, check)
            assert check_files(damaged).damages == [], at
        # No byte of the damaged files is lost, and each is copied once.
        kept = {file.read_bytes() for file in copies_in(damaged) if file.suffix != ".new"}
        assert {before["appendonly.aof.2.incr.aof"], before["appendonly.aof.3.incr.aof"]} <= kept
        assert len([file for file in copies_in(damaged) if file.suffix != ".new"]) <= 4
        if not crashed:
            break
        at += 1
    assert at > 8, "the crash points were not reached"
    assert keys_in(damaged) == keys(25)


def test_repair_without_room_for_copy_changes_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoil(folder)
    before = content(folder)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(shutil, "copyfileobj", full)
    with stopped_store(folder), pytest.raises(StoreFileDamagedError, match="no room for a copy"):
        repair_files(folder, check_files(folder))
    assert content(folder) == before


# -- Start -----------------------------------------------------------------------------------


def test_start_with_damaged_file_names_the_remedy_first_in_its_hint(folder: Path) -> None:
    spoil(folder)
    with pytest.raises(StoreRefusedError) as raised:
        EmbeddedServer(folder).start()
    assert raised.value.code == "store.file-damaged"
    assert raised.value.hint.startswith(f"Run `waystation store check --fix --data {folder.parent}")
    assert "valkey-check-aof" not in str(raised.value)


@pytest.mark.parametrize("header", [b"REDIS0999", b"VALKEY999"])
def test_files_of_a_newer_server_are_not_called_damaged(folder: Path, header: bytes) -> None:
    base = part(folder, "*.base.rdb")
    base.write_bytes(header + base.read_bytes()[9:])
    before = content(folder)

    with pytest.raises(StoreRefusedError) as raised:
        EmbeddedServer(folder).start()
    assert raised.value.code == "store.refused"
    assert "newer server" in raised.value.hint
    with stopped_store(folder), pytest.raises(StoreError, match="cannot read") as failed:
        check_files(folder)
    assert "newer server" in failed.value.hint
    assert content(folder) == before


def test_start_without_manifest_of_empty_store_succeeds(tmp_path: Path) -> None:
    # A crash during the first start leaves a base file without data and no manifest.
    write_and_stop(tmp_path / "store")
    (tmp_path / "store" / "appendonlydir" / "appendonly.aof.manifest").unlink()
    with EmbeddedServer(tmp_path / "store") as server:
        assert ask(server.address.path, b"PING") == b"+PONG\r\n"


# -- Command ---------------------------------------------------------------------------------


def run_check(
    folder: Path, *options: str, stdin: int = subprocess.DEVNULL
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command("store", "check", "--data", str(folder.parent), *options),
        cwd=folder.parent,
        env=clean_environment(),
        stdin=stdin,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.fixture
def terminal() -> Iterator[tuple[int, int]]:
    """Open a pseudo-terminal. Yield its two ends."""
    ends = pty.openpty()
    yield ends
    for end in ends:
        os.close(end)


def test_store_check_prints_damage_and_exits_with_1(folder: Path) -> None:
    before = spoil(folder)
    place = before.index(b"!spoiled!")
    done = run_check(folder)
    assert done.returncode == 1
    assert f"appendonly.aof.2.incr.aof  {len(before):>4}" in done.stdout
    assert str(place) in done.stdout
    cut = f"cuts {len(before) - place:,} bytes. Writes after this point are lost."
    assert cut in done.stdout
    assert "store check --fix" in done.stdout
    assert newest_part(folder).read_bytes() == before
    assert copies_in(folder) == []


def test_store_check_fix_without_terminal_requires_yes(folder: Path) -> None:
    before = spoil(folder)
    done = run_check(folder, "--fix")
    assert done.returncode == 2
    assert "Pass --yes" in done.stderr
    assert newest_part(folder).read_bytes() == before
    done = run_check(folder, "--fix", "--yes")
    assert done.returncode == 0, done.stderr
    assert str(copies_in(folder)[0]) in done.stdout.replace("\n", "")
    assert run_check(folder).returncode == 0


@pytest.mark.parametrize(("answer", "code"), [(b"n\n", 1), (b"y\n", 0)])
def test_store_check_fix_on_terminal_asks_for_confirmation(
    folder: Path, terminal: tuple[int, int], answer: bytes, code: int
) -> None:
    before = spoil(folder)
    os.write(terminal[0], answer)
    done = run_check(folder, "--fix", stdin=terminal[1])
    assert done.returncode == code, done.stderr
    assert "Writes after the damage are lost" in done.stderr
    assert (newest_part(folder).read_bytes() == before) is (code == 1)


def test_store_check_fix_of_torn_tail_needs_no_confirmation(folder: Path) -> None:
    tear(folder)
    done = run_check(folder, "--fix")
    assert done.returncode == 0, done.stderr
    assert "the unfinished last write" in done.stdout
    assert keys_in(folder) == keys(24)


def test_store_check_json_reports_damage_and_repair(folder: Path) -> None:
    before = spoil(folder)
    place = before.index(b"!spoiled!")
    done = run_check(folder, "--json")
    assert done.returncode == 1
    report = json.loads(done.stdout)
    assert report["damages"] == [
        {
            "file": "appendonly.aof.2.incr.aof",
            "problem": "The file contains bytes that are not a command.",
            "size_bytes": len(before),
            "offset": place,
            "cut_bytes": len(before) - place,
            "incomplete": False,
            "repairable": True,
        }
    ]
    assert (report["repairable"], report["repaired"], report["copies"]) == (True, False, [])

    done = run_check(folder, "--fix", "--yes", "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["repaired"] is True
    assert report["copies"] == [str(copies_in(folder)[0])]
    report = json.loads(run_check(folder, "--json").stdout)
    assert (report["damages"], report["repaired"]) == ([], False)


def test_store_check_of_damaged_base_file_exits_with_1_and_changes_nothing(folder: Path) -> None:
    os.truncate(part(folder, "*.base.rdb"), 60)
    before = content(folder)
    done = run_check(folder, "--fix", "--yes")
    assert done.returncode == 1
    assert "cannot be repaired" in done.stdout
    assert "accept-loss" in done.stdout
    assert content(folder) == before


def test_store_check_of_running_store_exits_with_conflict(folder: Path) -> None:
    with EmbeddedServer(folder) as server:
        done = run_check(folder, "--fix", "--json")
        process_id = server.process_id
    assert done.returncode == 6
    assert json.loads(done.stderr)["code"] == "store.in-use"
    assert ended(process_id)


def test_store_check_without_store_exits_with_not_found(tmp_path: Path) -> None:
    done = run_check(tmp_path / "store")
    assert done.returncode == 3
    assert "No embedded store exists" in done.stderr
    assert not (tmp_path / "store").exists()
