"""Client of the query process: start it unless it runs, run a query in it, stop it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import msgspec

from waystation.config import Config
from waystation.errors import (
    QueryStoppedError,
    SettingsError,
    SparkGoneError,
    SparkStartError,
    class_for,
)
from waystation.history.process import child_environment
from waystation.history.query_protocol import (
    QueryAccepted,
    QueryEnded,
    QueryFailed,
    QueryPlace,
    QueryProgress,
    QueryRequest,
    QueryStarted,
    ResultFormat,
    ResultPiece,
    StopReply,
    StopRequest,
    query_folder,
    query_place,
    receive_reply,
    send,
    socket_address,
)
from waystation.history.query_server import LISTENING
from waystation.runtime.clock import Clock
from waystation.runtime.data_files import make_private, tighten

#: Time for a process to listen, and for one that ends to make room for the next.
_START_S_MAX = 60.0
_RETRY_S = 0.05
_STOP_S_MAX = 60.0
#: Time for a process to accept a query. It does so before the query waits for Spark.
_REPLY_S_MAX = 20.0


class NoQueryProcessError(Exception):
    """The data directory cannot have the socket of a query process of this user."""


class QueryProcess:
    """The query process for some settings."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._place = query_place(config, os.environ)
        self._clock = Clock()

    def run(
        self,
        sql: str,
        form: ResultFormat,
        *,
        before_start: Callable[[], None],
        on_started: Callable[[QueryStarted], None],
        on_progress: Callable[[QueryProgress], None],
    ) -> Iterator[bytes]:
        """Yield the result of a query in pieces; to close the iterator cancels the query.

        Call `before_start` before a process is started, so that it can refuse. Raise the errors of
        the query, SparkStartError if the process does not start, SparkGoneError if it ends before
        the query, NoQueryProcessError if it cannot be used.
        """
        with self._accepted(sql, form, before_start) as connection:
            while True:
                reply = receive_reply(connection)
                if isinstance(reply, ResultPiece):
                    yield reply.data
                elif isinstance(reply, QueryStarted):
                    on_started(reply)
                elif isinstance(reply, QueryProgress):
                    on_progress(reply)
                elif isinstance(reply, QueryEnded):
                    return
                elif isinstance(reply, QueryFailed):
                    raise class_for(reply.code, 500)(reply.error, hint=reply.hint)
                else:
                    raise SparkGoneError(
                        "The process that ran the query has ended.",
                        hint="Run the query again: a new process starts. If memory was short,"
                        " raise it with --memory.",
                    )

    def _accepted(
        self, sql: str, form: ResultFormat, before_start: Callable[[], None]
    ) -> socket.socket:
        """Send a query to the process. Return the connection after the process has accepted it."""
        request = QueryRequest(self._place.identity, sql, form)
        until_s = self._clock.uptime_s() + _START_S_MAX
        while self._clock.uptime_s() < until_s:
            connection = _connect(self._place.socket)
            if connection is None:
                before_start()
                self._start()
                continue
            try:
                connection.settimeout(_REPLY_S_MAX)
                send(connection, request)
                reply = receive_reply(connection)
                connection.settimeout(None)
            except BaseException as error:
                connection.close()
                # A process that does not answer in time may still answer the next attempt.
                if not isinstance(error, ConnectionError | TimeoutError):
                    raise
                reply = None
            if isinstance(reply, QueryAccepted):
                return connection
            connection.close()
            if isinstance(reply, QueryFailed):
                raise class_for(reply.code, 500)(reply.error, hint=reply.hint)
            # The process is ending. Its query has not begun, so that another process can run it.
            time.sleep(_RETRY_S)
        raise SparkStartError(
            f"The query process did not accept the query within {_START_S_MAX:.0f} s.",
            hint=f"Run the query with --no-warm, or see the log {self._place.log}.",
        )

    def _start(self) -> None:
        """Start a process, unless another client has just started one."""
        _open_folder(self._place.folder)
        stop_idle_processes(self._place)
        process = subprocess.Popen(  # noqa: S603 (our own module)
            [sys.executable, "-m", "waystation.history.query_server", self._place.identity],
            env=child_environment(self._config, os.environ),
            # Not that of the user, which may be deleted or unmounted while the process runs.
            cwd=self._place.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            # Ctrl-C and the end of the terminal must not reach it: other clients use it, too.
            start_new_session=True,
        )
        assert process.stdout is not None, "it is a pipe"
        with process.stdout as output:
            word = output.readline().decode().strip()
        if word == LISTENING:
            return
        if code := process.wait():
            raise SparkStartError(
                f"The query process ended with code {code} before it listened.",
                hint="--no-warm runs the query without it.",
            )
        time.sleep(_RETRY_S)


def stop_processes(config: Config) -> int:
    """End all query processes of a data directory; return their number.

    Running queries fail. Return when the processes have ended.
    """
    stopped = 0
    for file in sorted(query_folder(config).glob("*.socket")):
        with suppress(NoQueryProcessError):
            connection = _request_stop(file, only_idle=False)
            if connection is not None:
                with connection:
                    _wait_for_end(connection, file)
                stopped += 1
    return stopped


def stop_idle_processes(place: QueryPlace) -> None:
    """Ask the query processes of other settings to end unless they run a query.

    Each of them has the memory of a Spark session.
    """
    for file in place.folder.glob("*.socket"):
        if file == place.socket:
            continue  # Another client has just started it.
        with suppress(NoQueryProcessError, OSError):
            if connection := _request_stop(file, only_idle=True):
                connection.close()


def _request_stop(file: Path, *, only_idle: bool) -> socket.socket | None:
    """Return the connection to a process that will end; None without one that agrees."""
    connection = _connect(file)
    if connection is None:
        return None
    connection.settimeout(_STOP_S_MAX)
    reply = None
    # A process that is ending closes the connection. One that is stopped does not answer.
    with suppress(ConnectionError, TimeoutError, msgspec.MsgspecError):
        send(connection, StopRequest(only_idle))
        reply = receive_reply(connection)
    if isinstance(reply, StopReply) and reply.stopping:
        return connection
    connection.close()
    return None


def _wait_for_end(connection: socket.socket, file: Path) -> None:
    """Wait until the process has ended, which closes the connection."""
    connection.settimeout(_STOP_S_MAX)
    try:
        connection.recv(1)
    except ConnectionError:
        return
    except TimeoutError:
        raise QueryStoppedError(
            f"The query process did not end within {_STOP_S_MAX:.0f} s.",
            hint=f"Run the command again to wait longer. The log is {file.with_suffix('.log')}.",
        ) from None


def _connect(file: Path) -> socket.socket | None:
    """Connect to a process; return None if none listens. Raise NoQueryProcessError."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if file.stat().st_uid != os.geteuid():
            raise NoQueryProcessError(f"Another user owns {file}.")
        with socket_address(file) as address:
            connection.connect(address)
    except (FileNotFoundError, ConnectionRefusedError):
        connection.close()
        return None
    except OSError as error:
        connection.close()
        raise NoQueryProcessError(str(error)) from error
    except NoQueryProcessError:
        connection.close()
        raise
    return connection


def _open_folder(folder: Path) -> None:
    """Create the folder of the sockets, which only this user can enter."""
    try:
        make_private(folder)
        tighten([folder])
        if folder.stat().st_uid != os.geteuid():
            raise NoQueryProcessError(f"Another user owns {folder}.")
    except (OSError, SettingsError) as error:
        raise NoQueryProcessError(str(error)) from error
