"""A PostgreSQL server of our own: the machine's programs, else those of a wheel; never a mock.

    with postgres_server() as server:
        url = server.empty_database()
        server.kill()                     # kill -9, of all its processes
        server.start()

It listens on a Unix socket, where everyone is let in, and on loopback, where a password is asked
for. `initdb` refuses root, so as root it runs as another user.
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
    """One server; kill, freeze and start it at will."""

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
        """The Unix socket."""
        return Address(path=str(self.folder / f".s.PGSQL.{self.port}"))

    def create(self) -> None:
        """Makes the folder of the data."""
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
        """Returns when it answers. What a killed one left in memory may take a moment to go."""
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
        """By the Unix socket."""
        return f"postgresql://{_USER}@/{database}?host={self.folder}&port={self.port}"

    def loopback_url(self, database: str, *, password: str = PASSWORD, port: int = 0) -> str:
        """By the network, with a password."""
        return f"postgresql://{_USER}:{password}@127.0.0.1:{port or self.port}/{database}"

    def empty_database(self) -> str:
        """The name of a database with nothing in it: always the same one, which is fast."""
        if not self.execute("postgres", f"SELECT 1 FROM pg_database WHERE datname = '{_DATABASE}'"):
            self.execute("postgres", f"CREATE DATABASE {_DATABASE}")
        self.execute(
            _DATABASE,
            "DROP SCHEMA IF EXISTS waystation_archive, waystation_catalogue, public CASCADE;"
            " CREATE SCHEMA public",
        )
        return _DATABASE

    def new_role(self, options: str = "") -> str:
        """The name of a role that may log in."""
        name = f"role_{next(_numbers)}"
        self.execute("postgres", f"CREATE ROLE {name} LOGIN {options}")
        return name

    def execute(self, database: str, statement: str) -> list[tuple[Any, ...]]:
        """A statement of the test's own."""
        with psycopg.connect(self.url(database), autocommit=True) as connection:
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    def slow_commits(self, database: str, table: str) -> None:
        """A commit of rows of that table takes a while from now on, see `until_asleep`."""
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
        """Returns when a statement in that database sleeps, or waits for what is named."""
        waiting = (
            f"SELECT 1 FROM pg_stat_activity WHERE datname = '{database}' AND wait_event = '{in_}'"
        )
        while not await asyncio.to_thread(self.execute, "postgres", waiting):
            await asyncio.sleep(0.01)

    def processes(self) -> list[int]:
        """The server's processes, the first one first."""
        assert self.process is not None
        first = self.process.pid
        children = Path(f"/proc/{first}/task/{first}/children").read_text().split()
        return [first, *map(int, children)]

    def signal(self, number: signal.Signals) -> None:
        """To all of its processes."""
        for process_id in self.processes():
            with suppress(ProcessLookupError):
                os.kill(process_id, number)

    def limit_files(self, size: int) -> None:
        """No process of it may write beyond that size of a file, as if the disk were full there."""
        all_of_them = self.processes()
        child = os.fork()
        if child == 0:
            code = 1
            try:
                # As the user of the server: root without all of its powers may not.
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
        """kill -9 of all; returns when they are gone."""
        if self.process is None or self.process.poll() is not None:
            return
        # Stopped first: it must not have another child meanwhile, which would live on.
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
        """Ends it, if it runs, without writing what it has: nobody needs that any more.

        One that was killed would leave shared memory behind.
        """
        if self.process is not None and self.process.poll() is None:
            self.signal(signal.SIGCONT)
            self.process.send_signal(signal.SIGQUIT)
            self.process.wait()


@contextmanager
def postgres_server(*options: str, programs: Path | None = None) -> Iterator[PostgresServer]:
    """A server in a folder of its own, with a short path, for the length of the block."""
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
