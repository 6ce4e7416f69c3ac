"""PostgreSQL server of a test, from the machine's programs or those of a wheel; never a mock.

with postgres_server() as server: url = server.empty_database() server.kill() # SIGKILL for all its
processes server.start()

The server listens on a Unix socket without a password, and on loopback with one. `initdb` refuses
root, so a test that runs as root starts the server as another user.
"""

from __future__ import annotations

import asyncio
import os
import resource
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any

import psycopg

from tests.helpers.processes import ended
from waystation.store.address import Address
from waystation_bench.postgres import other_user, server_programs

PASSWORD = "correct-horse-battery-postgres"
_USER = "station"
_READY_SECONDS_MAX = 30.0
_DATABASE = "test"
_numbers = count(1)


class PostgresServer:
    """One server. A test can kill, freeze and restart it."""

    def __init__(self, folder: Path, programs: Path, *options: str) -> None:
        self.folder = folder
        self._programs = programs
        self._options = options
        self._as_user = other_user()
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = int(free.getsockname()[1])
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> Address:
        """Address of the Unix socket."""
        return Address(path=str(self.folder / f".s.PGSQL.{self.port}"))

    def create(self) -> None:
        """Create the data directory."""
        secret = self.folder / "password"
        secret.write_text(PASSWORD)
        if self._as_user:
            shutil.chown(self.folder, self._as_user["user"])
            shutil.chown(secret, self._as_user["user"])
        subprocess.run(
            [
                *(self._programs / "initdb", "-D", self.folder / "data", "-U", _USER),
                *("--auth-local=trust", "--auth-host=scram-sha-256", f"--pwfile={secret}"),
                *("--no-sync", "--encoding=UTF8", "--locale=C", "--wal-segsize=1"),
            ],
            check=True,
            capture_output=True,
            cwd=self.folder,
            **self._as_user,
        )

    def start(self) -> None:
        """Start the server and wait until it answers.

        Repeat the start for a while, because shared memory of a killed server can still be in use.
        """
        until = time.monotonic() + _READY_SECONDS_MAX
        while True:
            if self.process is None or self.process.poll() is not None:
                self._launch()
            try:
                psycopg.connect(self.url("postgres"), connect_timeout=5).close()
            except psycopg.OperationalError:
                assert time.monotonic() < until, self.log()
                time.sleep(0.02)
            else:
                return

    def _launch(self) -> None:
        options = {
            "listen_addresses": "127.0.0.1",
            "port": str(self.port),
            "unix_socket_directories": str(self.folder),
            "shared_buffers": "16MB",
            "max_connections": "40",
            "min_wal_size": "2MB",
            "fsync": "off",
        }
        options |= dict(each.split("=", 1) for each in self._options)
        words = [word for name, value in options.items() for word in ("-c", f"{name}={value}")]
        with (self.folder / "server.log").open("ab") as log:
            self.process = subprocess.Popen(
                [self._programs / "postgres", "-D", self.folder / "data", *words],
                stdout=log,
                stderr=log,
                cwd=self.folder,
                **self._as_user,
            )

    def log(self) -> str:
        return (self.folder / "server.log").read_text(errors="replace")[-2000:]

    def url(self, database: str) -> str:
        """Return the URL of a database by the Unix socket."""
        return f"postgresql://{_USER}@/{database}?host={self.folder}&port={self.port}"

    def loopback_url(self, database: str, *, password: str = PASSWORD, port: int = 0) -> str:
        """Return the URL of a database by TCP, with a password."""
        return f"postgresql://{_USER}:{password}@127.0.0.1:{port or self.port}/{database}"

    def empty_database(self) -> str:
        """Empty the test database and return its name.

        All tests share one database, because creating one takes longer than emptying it.
        """
        if not self.execute("postgres", f"SELECT 1 FROM pg_database WHERE datname = '{_DATABASE}'"):
            self.execute("postgres", f"CREATE DATABASE {_DATABASE}")
        self.execute(
            _DATABASE,
            "DROP SCHEMA IF EXISTS waystation_archive, waystation_catalogue, public CASCADE;"
            " CREATE SCHEMA public",
        )
        return _DATABASE

    def new_role(self, options: str = "") -> str:
        """Create a role that may log in, and return its name."""
        name = f"role_{next(_numbers)}"
        self.execute("postgres", f"CREATE ROLE {name} LOGIN {options}")
        return name

    def execute(self, database: str, statement: str) -> list[tuple[Any, ...]]:
        """Run a statement in its own transaction and return the rows."""
        with psycopg.connect(self.url(database), autocommit=True) as connection:
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    def slow_commits(self, database: str, table: str) -> None:
        """Delay each commit that writes rows of a table by 0.3 s, see `until_asleep`."""
        self.execute(
            database,
            f"""
            CREATE FUNCTION doze() RETURNS trigger LANGUAGE plpgsql
              AS 'BEGIN PERFORM pg_sleep(0.3); RETURN NULL; END';
            CREATE CONSTRAINT TRIGGER doze AFTER INSERT OR UPDATE ON {table}
              DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION public.doze();
            """,
        )

    async def until_asleep(self, database: str, *, in_: str = "PgSleep") -> None:
        """Wait until a statement in the database waits for the event `in_`."""
        waiting = (
            f"SELECT 1 FROM pg_stat_activity WHERE datname = '{database}' AND wait_event = '{in_}'"
        )
        while not await asyncio.to_thread(self.execute, "postgres", waiting):
            await asyncio.sleep(0.01)

    def processes(self) -> list[int]:
        """Return the ids of the server's processes, the main process first."""
        assert self.process is not None
        first = self.process.pid
        children = Path(f"/proc/{first}/task/{first}/children").read_text().split()
        return [first, *map(int, children)]

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to all processes of the server."""
        for process_id in self.processes():
            with suppress(ProcessLookupError):
                os.kill(process_id, number)

    def limit_files(self, size: int) -> None:
        """Limit the file size of all processes of the server, to simulate a full disk."""
        all_of_them = self.processes()
        child = os.fork()
        if child == 0:
            code = 1
            try:
                # Run as the user of the server, because root in a container may lack the right.
                if self._as_user:
                    os.setgroups([])
                    os.setgid(self._as_user["group"])
                    os.setuid(self._as_user["user"])
                for each in all_of_them:
                    with suppress(ProcessLookupError):  # A connection that ended meanwhile.
                        hard = resource.prlimit(each, resource.RLIMIT_FSIZE)[1]
                        resource.prlimit(each, resource.RLIMIT_FSIZE, (size, hard))
                code = 0
            finally:
                os._exit(code)
        assert os.waitpid(child, 0)[1] == 0

    def kill(self) -> None:
        """Kill all processes of the server with SIGKILL and wait for their exit."""
        if self.process is None or self.process.poll() is not None:
            return
        # Stop the main process first, so that it starts no child that would survive.
        self.process.send_signal(signal.SIGSTOP)
        while _state_of(self.process.pid) not in "TZ":
            time.sleep(0.001)
        all_of_them = self.processes()
        for process_id in all_of_them:
            with suppress(ProcessLookupError):
                os.kill(process_id, signal.SIGKILL)
        self.process.wait()
        assert all(ended(process_id) for process_id in all_of_them)

    def stop(self) -> None:
        """End the server, if it runs, without a checkpoint.

        SIGQUIT removes its shared memory, which SIGKILL would leave behind.
        """
        if self.process is not None and self.process.poll() is None:
            self.signal(signal.SIGCONT)
            self.process.send_signal(signal.SIGQUIT)
            self.process.wait()


@contextmanager
def postgres_server(*options: str, programs: Path | None = None) -> Iterator[PostgresServer]:
    """Run a server in a temporary folder for the length of the block. Its path is short."""
    folder = Path(tempfile.mkdtemp(prefix="ws-pg-"))
    server = PostgresServer(folder, programs or server_programs(), *options)
    try:
        server.create()
        server.start()
        yield server
    finally:
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)


def _state_of(process_id: int) -> str:
    return Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()[0]
