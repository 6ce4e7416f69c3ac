"""Embedded server: start, stop, sharing, crashes, socket, durability, and a deleted folder."""

from __future__ import annotations

import fcntl
import os
import random
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers.processes import User, ended, parent_of
from waystation.errors import StoreUnavailableError
from waystation.store.embedded import server as server_module
from waystation.store.embedded.server import EmbeddedServer, supervisor
from waystation.store.embedded.supervisor import ask


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """Yield the folder of an embedded server. Wait after the test until the server has stopped."""
    folder = tmp_path / "store"
    yield folder
    if folder.exists():
        with open(folder / "users.lock", "a") as users:
            # The supervisor releases the lock after it has stopped the server.
            fcntl.flock(users, fcntl.LOCK_EX)


def say(server: EmbeddedServer, command: str) -> bytes:
    return ask(server.address.path, command.encode())


def supervisor_runs(folder: Path) -> bool:
    with open(folder / "keeper.lock") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def wait_for_another_supervisor(folder: Path, crashed: int) -> None:
    assert ended(crashed)
    until = time.monotonic() + 10
    while not supervisor_runs(folder):
        assert time.monotonic() < until, "no user started another supervisor"
        time.sleep(0.01)


# -- Starting and stopping -------------------------------------------------------------------


def test_server_starts_without_notes(folder: Path, record_property: pytest.RecordProperty) -> None:
    began = time.monotonic()
    with EmbeddedServer(folder) as server:
        took = time.monotonic() - began
        assert say(server, "PING") == b"+PONG\r\n"
        assert server.notes == []
    record_property("start_ms", round(took * 1000))
    assert took < 20, "a start normally takes about 0.2 seconds"


def test_server_starts_with_jemalloc_of_the_machine(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The C library stands in for jemalloc, because the machine may not have jemalloc.
    library = tmp_path / "lib" / server_module._ALLOCATOR
    library.parent.mkdir()
    maps = Path("/proc/self/maps").read_text().split()
    library.symlink_to(next(each for each in maps if "/libc.so" in each or "/libc-" in each))
    monkeypatch.setattr(server_module, "_LIBRARIES", (str(library.parent), str(tmp_path)))
    with EmbeddedServer(folder) as server:
        started = Path(f"/proc/{server.process_id}/environ").read_bytes().split(b"\0")
        assert f"LD_PRELOAD={library}".encode() in started
        assert say(server, "PING") == b"+PONG\r\n"


def test_server_keeps_data_over_restart(folder: Path) -> None:
    with EmbeddedServer(folder) as server:
        say(server, "SET kept 1")
        first = server.process_id
    assert ended(first)

    with EmbeddedServer(folder) as server:
        assert server.process_id != first
        assert say(server, "GET kept") == b"$1\r\n1\r\n"
        # A clean stop adds no note.
        assert server.notes == []


def test_server_is_shared_by_processes_of_one_folder(folder: Path) -> None:
    # The processes start concurrently, and no server runs yet.
    users = [User(folder) for _ in range(3)]
    servers = {user.server_id for user in users}
    with EmbeddedServer(folder) as server:
        assert servers == {server.process_id}
        assert say(server, "INFO clients").startswith(b"$")
    for user in users:
        user.leave()
    assert ended(servers.pop())


def test_server_survives_crash_of_the_process_that_started_it(folder: Path) -> None:
    starter = User(folder)
    server_id = starter.server_id
    with EmbeddedServer(folder) as server:
        starter.kill()
        assert not ended(server_id, seconds=0.5)
        assert say(server, "SET still here") == b"+OK\r\n"
        assert server.process_id == server_id
    assert ended(server_id)


def test_server_stops_after_the_last_user_closed_or_crashed(folder: Path) -> None:
    users = [User(folder) for _ in range(3)]
    server_id = users[0].server_id
    supervisor_id = parent_of(server_id)
    for user in users:
        assert user.server_id == server_id
    users[0].leave()
    users[1].kill()
    assert not ended(server_id, seconds=0.3)

    users[2].kill()

    assert ended(server_id)
    assert ended(supervisor_id)


@pytest.mark.slow
def test_server_start_during_stop_waits_for_its_end(folder: Path) -> None:
    rounds, seed = 20, random.randrange(1 << 32)
    rng = random.Random(seed)
    for number in range(rounds):
        child = os.fork()
        if child == 0:
            # The child process exits without closing its handle.
            code = 1
            try:
                server = EmbeddedServer(folder)
                server.start()
                code = 0 if say(server, "INCR count") == b":%d\r\n" % (number + 1) else 2
            finally:
                os._exit(code)
        assert os.waitpid(child, 0)[1] == 0, f"round {number} with seed {seed}"
        # The next child starts while the server runs, stops or has just stopped.
        time.sleep(rng.uniform(0, 0.15))
    with EmbeddedServer(folder) as server:
        assert say(server, "GET count") == b"$2\r\n%d\r\n" % rounds
        assert server.notes == []


# -- Crashes ---------------------------------------------------------------------------------


def test_supervisor_after_crash_of_another_adopts_its_server(folder: Path) -> None:
    with EmbeddedServer(folder) as server:
        server_id, supervisor_id = server.process_id, parent_of(server.process_id)
        say(server, "SET kept 1")

        os.kill(supervisor_id, signal.SIGKILL)

        wait_for_another_supervisor(folder, supervisor_id)
        assert server.process_id == server_id
        assert say(server, "GET kept") == b"$1\r\n1\r\n"
    # The new supervisor stops the server, although the server is not its child.
    assert ended(server_id)
    with EmbeddedServer(folder) as server:
        assert server.notes == []


def test_supervisor_without_state_file_adopts_running_server(
    folder: Path,
) -> None:
    with EmbeddedServer(folder) as server:
        server_id, supervisor_id = server.process_id, parent_of(server.process_id)
        os.kill(supervisor_id, signal.SIGSTOP)
        (folder / "server.json").unlink()
        os.kill(supervisor_id, signal.SIGKILL)
        wait_for_another_supervisor(folder, supervisor_id)
        with EmbeddedServer(folder) as other:
            assert other.process_id == server_id
    assert ended(server_id)


@pytest.mark.slow
def test_supervisor_of_unresponsive_server_starts_no_second_one(folder: Path) -> None:
    with EmbeddedServer(folder) as server:
        server_id, supervisor_id = server.process_id, parent_of(server.process_id)
        os.kill(server_id, signal.SIGSTOP)
        os.kill(supervisor_id, signal.SIGKILL)
        wait_for_another_supervisor(folder, supervisor_id)
        # Two seconds is the limit of the supervisor's wait for a reply.
        assert not ended(server_id, seconds=2.5)
        os.kill(server_id, signal.SIGCONT)
        assert say(server, "SET one 1") == b"+OK\r\n"
        assert server.process_id == server_id
    assert ended(server_id)


def test_server_after_kill_restarts_with_data_and_note(folder: Path) -> None:
    with EmbeddedServer(folder) as server:
        say(server, "SET kept 1")
        first = server.process_id

        os.kill(first, signal.SIGKILL)

        assert ended(first)
        with EmbeddedServer(folder) as other:
            assert other.process_id != first
            assert say(other, "GET kept") == b"$1\r\n1\r\n"
        assert "did not stop cleanly" in server.notes[0]


def test_start_after_kill_of_server_and_users_notes_unclean_stop(folder: Path) -> None:
    user = User(folder)
    server_id = user.server_id
    supervisor_id = parent_of(server_id)
    os.kill(supervisor_id, signal.SIGSTOP)
    os.kill(server_id, signal.SIGKILL)
    user.kill()
    # The resumed supervisor finds neither a server nor a user.
    os.kill(supervisor_id, signal.SIGCONT)
    assert ended(supervisor_id)

    with EmbeddedServer(folder) as server:
        assert "did not stop cleanly" in server.notes[0]


# -- Socket, permissions and durability ------------------------------------------------------


def test_socket_has_short_path_outside_of_data_directory(tmp_path: Path) -> None:
    deep = tmp_path.joinpath(*["a-rather-long-name-of-a-folder"] * 6)
    with EmbeddedServer(deep) as server:
        path = Path(server.address.path)
        assert len(str(deep)) > 107
        assert len(os.fsencode(path)) <= 107
        assert deep not in path.parents
        assert path.parent.stat().st_mode & 0o077 == 0, "only its owner may enter"
        assert say(server, "PING") == b"+PONG\r\n"
        server_id = server.process_id
    assert ended(server_id)
    assert not path.exists()


def test_socket_folder_that_is_not_private_is_not_used(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trap = tmp_path / "runtime"
    trap.mkdir()
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    (trap / f"waystation-{os.getuid()}").symlink_to(tmp_path / "elsewhere")
    monkeypatch.setattr(tempfile, "tempdir", str(trap))
    with EmbeddedServer(folder) as server:
        assert trap not in Path(server.address.path).parents


def test_server_with_deleted_socket_restarts_at_the_same_path(folder: Path) -> None:
    with EmbeddedServer(folder) as server:
        say(server, "SET kept 1")
        path, server_id = server.address.path, server.process_id

        os.unlink(path)

        assert ended(server_id)
        with EmbeddedServer(folder) as other:
            assert other.address.path == path
            assert say(other, "GET kept") == b"$1\r\n1\r\n"


def test_server_files_in_readable_folder_are_private(folder: Path) -> None:
    folder.mkdir(mode=0o755)
    with EmbeddedServer(folder) as server:
        say(server, "SET secret 1")
        written = [folder / "server.log", *(folder / "appendonlydir").iterdir()]
        assert len(written) >= 4
        assert [each for each in written if each.stat().st_mode & 0o077] == []


def test_server_with_several_users_keeps_the_strictest_durability(folder: Path) -> None:
    always, everysec = (f"$11\r\nappendfsync\r\n${n}\r\n" for n in (6, 8))
    with EmbeddedServer(folder, durability="memory") as first:
        assert everysec.encode() in say(first, "CONFIG GET appendfsync")
        with EmbeddedServer(folder, durability="disk") as strict:
            assert always.encode() in say(strict, "CONFIG GET appendfsync")
            server_id = strict.process_id
        # A restarted server keeps the strictest durability.
        os.kill(server_id, signal.SIGKILL)
        assert ended(server_id)
        with EmbeddedServer(folder, durability="memory") as second:
            assert always.encode() in say(second, "CONFIG GET appendfsync")
            server_id = second.process_id
    # A start after the last close applies only the durability of the new user.
    assert ended(server_id)
    with EmbeddedServer(folder, durability="memory") as later:
        assert everysec.encode() in say(later, "CONFIG GET appendfsync")


def test_start_that_times_out_behind_a_stop_closes_its_lock_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "store"
    folder.mkdir(mode=0o700)
    monkeypatch.setattr(server_module, "_WAIT_SECONDS_MAX", 0.05)
    stopping = os.open(folder / "users.lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        # A supervisor has this lock while it stops the server.
        fcntl.flock(stopping, fcntl.LOCK_EX)
        before = len(os.listdir("/dev/fd"))
        server = EmbeddedServer(folder)
        with pytest.raises(StoreUnavailableError, match="the store to stop"):
            server.start()
        assert len(os.listdir("/dev/fd")) == before
    finally:
        os.close(stopping)


# -- Deleted folders and lock files ----------------------------------------------------------


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
