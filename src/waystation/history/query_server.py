"""Query process: keeps a Spark session and answers `waystation history sql` until it is idle.

    python -m waystation.history.query_server IDENTITY       settings from the environment

The first query starts it, and later queries need no start of Java and Spark. It ends after
`history.sql_idle_seconds` without a query, on a StopRequest or SIGTERM, when its Java process ends,
and when its socket was deleted. Each query has a session of its own and reads the newest version of
the lake. The end of its connection cancels a query.

The process holds a lock while it listens, so that of several processes one listens, and a socket
that a killed process has left is replaced.
"""

from __future__ import annotations

import fcntl
import os
import re
import signal
import socket
import struct
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import msgspec

from waystation.config import Config
from waystation.config_sources import load_config
from waystation.errors import QueryStoppedError, SparkGoneError, WaystationError
from waystation.history.query_protocol import (
    QueryAccepted,
    QueryEnded,
    QueryFailed,
    QueryPlace,
    QueryProgress,
    QueryRequest,
    QueryStarted,
    Reply,
    ResultPiece,
    StopReply,
    StopRequest,
    query_folder,
    receive_request,
    send,
    socket_address,
)
from waystation.runtime.clock import Clock
from waystation.runtime.data_files import create_private
from waystation.runtime.logging import configure_logging, logger

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from waystation.history.lake.views import QueryResult

_log = logger("history")
#: Words on standard output for the client that started the process.
LISTENING, BUSY = "listening", "busy"
#: Queries that run at once. Further ones wait.
_QUERIES_MAX = 8
_CONNECTIONS_MAX = 64
_REQUEST_S_MAX = 10.0
#: Time for the running queries to report that the process ends.
_LAST_REPLIES_S = 5.0
_LOOK_S = 0.5
_ERROR_CHARACTERS_MAX = 10_000
#: Statements that Spark only plans, and that leave the views of the lake as they are, behind
#: brackets and comments. A statement with one of the last words may write: `with … insert`. The
#: first repetition is possessive, so that a match takes linear time.
_READS = re.compile(
    r"(\s|\(|--[^\n]*\n|/\*.*?\*/)*+"
    r"((select|values|table|show|desc|describe|explain)\b"
    r"|(with|from)\b(?!.*\b(insert|update|delete|merge)\b))",
    re.IGNORECASE | re.DOTALL,
)
_AGAIN = "Run the query again: a new process starts. If memory was short, raise it with --memory."


def main() -> int:
    """Serve queries until the process is idle; return the exit code."""
    (identity,) = sys.argv[1:]
    config = load_config(environment=os.environ).config
    place = QueryPlace(query_folder(config), identity)
    with _lock(place) as is_first:
        if not is_first:
            sys.stdout.write(f"{BUSY}\n")
            return 0
        listener = _listen(place)
        _redirect_output(place)
        configure_logging(format=config.log.format, level=config.log.level)
        server = QueryServer(config, place, listener)
        signal.signal(signal.SIGTERM, lambda *_: server.terminate())
        server.run()
    return 0


@contextmanager
def _lock(place: QueryPlace) -> Iterator[bool]:
    """Lock the place until the block or the process ends; yield False if another process has it."""
    create_private(place.lock)
    with place.lock.open("rb") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True


def _listen(place: QueryPlace) -> socket.socket:
    """Listen on the socket of a place. The caller has its lock, so an existing socket is stale."""
    place.socket.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with socket_address(place.socket) as address:
        listener.bind(address)
    # Before `listen`, because until then no client can connect.
    place.socket.chmod(0o600)
    listener.listen(_CONNECTIONS_MAX)
    return listener


def _redirect_output(place: QueryPlace) -> None:
    """Report that the process listens, and write all further output to its log."""
    sys.stdout.write(f"{LISTENING}\n")
    sys.stdout.flush()
    place.log.unlink(missing_ok=True)
    create_private(place.log)
    log = os.open(place.log, os.O_WRONLY | os.O_APPEND)
    os.dup2(log, sys.stdout.fileno())
    os.dup2(log, sys.stderr.fileno())
    os.close(log)


class QueryServer:
    """Runs the queries of a socket in one Spark application.

    The lock `_changed` guards the session, the failure of its start, the running queries, the time
    at which the last one ended, and whether the server still accepts queries.
    """

    def __init__(self, config: Config, place: QueryPlace, listener: socket.socket) -> None:
        self._config = config
        self._place = place
        self._listener = listener
        self._socket_id = _file_id(place)
        self._clock = Clock()
        self._changed = threading.Condition()
        self._spark: SparkSession | None = None
        self._failure: WaystationError | None = None
        self._running: set[_Query] = set()
        self._idle_since_s = self._clock.uptime_s()
        self._is_open = True
        self._has_served = False
        self._stopped = threading.Event()
        self._is_terminated = False
        self._connections = threading.BoundedSemaphore(_CONNECTIONS_MAX)
        self._permits = threading.BoundedSemaphore(_QUERIES_MAX)
        #: Held while views are created and a read is planned, because all sessions share views.
        self._planning = threading.Lock()
        #: Id and version of each table that the views show; empty if that is unknown.
        self._attached: dict[str, tuple[str, int]] = {}

    def run(self) -> None:
        """Start Spark, serve until the server is idle or stopped, and end Spark."""
        # Import here, because connections are accepted before this import of seconds.
        threading.Thread(target=self._accept, daemon=True).start()
        from waystation.history.session import (  # noqa: PLC0415
            java_process,
            running_session,
            session_plan,
        )

        try:
            with running_session(session_plan(self._config)) as spark:
                java = java_process()
                with self._changed:
                    self._spark = spark
                    self._changed.notify_all()
                while not self._is_terminated and not self._stopped.wait(_LOOK_S):
                    if self._is_idle():
                        break
                    if java is not None and java.poll() is not None:
                        raise SparkGoneError("The Java process of Spark has ended.", hint=_AGAIN)
                self._close(QueryStoppedError("The process of the Spark session was stopped."))
        except WaystationError as error:
            _log.warning("query process failed", error=error)
            self._close(error)

    def stop(self) -> None:
        """End the server soon. Running queries fail with QueryStoppedError."""
        self._stopped.set()

    def terminate(self) -> None:
        """Do the same from a signal handler.

        It runs in the thread of `run`, which may have the lock of the event just then.
        """
        self._is_terminated = True

    def _is_idle(self) -> bool:
        """Return whether the server should end because no query runs or can come."""
        with self._changed:
            if self._running:
                return False
            idle_s = self._clock.uptime_s() - self._idle_since_s
            is_idle = idle_s >= self._config.history.sql_idle_seconds
            if is_idle or _file_id(self._place) != self._socket_id:
                # A client that connects from now on gets no QueryAccepted and starts a new process.
                self._is_open = False
            return not self._is_open

    def _close(self, failure: WaystationError) -> None:
        """Stop listening, and make the running queries fail."""
        with self._changed:
            self._is_open = False
            self._failure = failure
            running = list(self._running)
            self._changed.notify_all()
        if _file_id(self._place) == self._socket_id:
            self._place.socket.unlink(missing_ok=True)
        self._listener.close()
        for query in running:
            query.cancel()
        with self._changed:
            self._changed.wait_for(lambda: not self._running, timeout=_LAST_REPLIES_S)

    # -- Connections -------------------------------------------------------------------------

    def _accept(self) -> None:
        while True:
            self._connections.acquire()
            try:
                connection, _ = self._listener.accept()
            except OSError as error:
                self._connections.release()
                if self._listener.fileno() < 0:
                    return  # The listener is closed.
                # The client is gone, or this process has too many open files for a moment.
                _log.warning("connection not accepted", reason=str(error))
                if self._stopped.wait(_LOOK_S):
                    return
                continue
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        try:
            with connection:
                connection.settimeout(_REQUEST_S_MAX)
                if not _is_own_user(connection):
                    return
                try:
                    request = receive_request(connection)
                except msgspec.MsgspecError as error:
                    send(connection, QueryFailed("input.invalid", f"{error}"))
                    return
                connection.settimeout(None)
                if isinstance(request, StopRequest):
                    self._stop(connection, request)
                elif request is not None and request.identity == self._place.identity:
                    self._admit(_Query(connection, request))
        except (OSError, _ClientGoneError):
            pass  # The client has closed the connection.
        finally:
            self._connections.release()

    def _stop(self, connection: socket.socket, request: StopRequest) -> None:
        with self._changed:
            # A process without a query so far is about to get one from the client that started it.
            is_used = bool(self._running) or not self._has_served
            is_refused = request.only_idle and is_used
            if not is_refused:
                self._is_open = False
        send(connection, StopReply(not is_refused))
        if not is_refused:
            self.stop()
            # The client waits for the end of the connection, which is that of the process.
            connection.recv(1)

    # -- Queries -----------------------------------------------------------------------------

    def _admit(self, query: _Query) -> None:
        with self._changed:
            if not self._is_open:
                return
            self._running.add(query)
            self._has_served = True
        try:
            query.send(QueryAccepted())
            threading.Thread(target=query.watch_connection, daemon=True).start()
            with self._permits:
                query.send(self._outcome(query))
        finally:
            query.end_connection()
            with self._changed:
                self._running.discard(query)
                self._idle_since_s = self._clock.uptime_s()
                self._changed.notify_all()

    def _outcome(self, query: _Query) -> Reply:
        """Run a query and return its last reply."""
        try:
            self._run(query)
        except _ClientGoneError:
            raise
        except Exception as error:
            with self._changed:
                # The reason for which the server has cancelled its queries.
                error = self._failure or error
            if isinstance(error, SparkGoneError):
                self.stop()  # Only a new process can start Spark again.
            if not isinstance(error, WaystationError):
                _log.error("query failed unexpectedly", error=error)
                return QueryFailed("history.error", f"{type(error).__name__}: {error}"[:1000])
            message = error.message[:_ERROR_CHARACTERS_MAX]
            return QueryFailed(error.code, message, error.hint)
        return QueryEnded()

    def _run(self, query: _Query) -> None:
        from waystation.history.progress import task_watch  # noqa: PLC0415 (as above)
        from waystation.history.query_results import encode_result  # noqa: PLC0415
        from waystation.history.session import ui_address  # noqa: PLC0415
        from waystation.history.spark_errors import spark_errors  # noqa: PLC0415

        spark = self._session()
        query.send(QueryStarted(ui_address(spark)))

        def report(completed: int, known: int) -> None:
            with suppress(_ClientGoneError):  # The thread of the query notices it, too.
                query.send(QueryProgress(completed, known))

        with (
            spark_errors(),
            task_watch(spark, "sql", report) as group,
            query.cancelling(lambda: spark.sparkContext.cancelJobGroup(group)),
        ):
            # Settings and temporary views of a query end with its session.
            session = spark.newSession()
            result = self._planned(session, query.sql)
            for piece in encode_result(result.columns, result.rows(), query.form):
                query.send(ResultPiece(piece))

    def _planned(self, session: SparkSession, sql: str) -> QueryResult:
        """Return the result of a statement. Spark computes the rows of a read later."""
        from waystation.history.lake.views import query_views  # noqa: PLC0415 (as above)

        with self._planning:
            self._attach(session)
            if _READS.match(sql):
                return query_views(session, sql)
        try:
            # Without the lock, because Spark executes the statement here, which can take long.
            return query_views(session, sql)
        finally:
            with self._planning:
                self._attached = {}  # The statement may have changed the views.

    def _attach(self, session: SparkSession) -> None:
        """Make the views those of the newest version of the lake, unless they already are."""
        from waystation.history.lake.views import attach, open_snapshot  # noqa: PLC0415 (as above)
        from waystation.history.session import prepared  # noqa: PLC0415
        from waystation.history.sources.topics import register  # noqa: PLC0415

        snapshot = open_snapshot(self._config.lake_place)
        versions = {name: (table.id, table.version) for name, table in snapshot.items()}
        if versions == self._attached:
            register(prepared(session))
            return
        self._attached = {}
        attach(prepared(session), lake=snapshot)
        self._attached = versions

    def _session(self) -> SparkSession:
        """Wait for the start of Spark. Raise its error if it fails."""
        with self._changed:
            self._changed.wait_for(lambda: self._spark is not None or self._failure is not None)
            if self._failure is not None:
                raise self._failure
            assert self._spark is not None, "it was waited for"
            return self._spark


class _ClientGoneError(Exception):
    """The client has closed the connection of its query."""


class _Query:
    """A request with its connection. Several threads send replies."""

    def __init__(self, connection: socket.socket, request: QueryRequest) -> None:
        self.sql = request.sql
        self.form = request.form
        self._connection = connection
        self._sending = threading.Lock()
        self._cancelled = threading.Event()

    def send(self, reply: Reply) -> None:
        """Send a reply. Raise _ClientGoneError if the client has closed the connection."""
        try:
            with self._sending:
                send(self._connection, reply)
        except OSError as error:
            raise _ClientGoneError from error

    def cancel(self) -> None:
        """Cancel the Spark jobs of the query."""
        self._cancelled.set()

    def watch_connection(self) -> None:
        """Cancel the query when its connection ends."""
        with suppress(OSError):
            self._connection.recv(1)
        self.cancel()

    def end_connection(self) -> None:
        """End the connection after the replies that were sent."""
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)

    @contextmanager
    def cancelling(self, cancel_jobs: Callable[[], None]) -> Iterator[None]:
        """Call `cancel_jobs` until the end of the block if the query is cancelled.

        Repeat the call, because a query starts one Spark job after the other.
        """
        left = threading.Event()

        def watch() -> None:
            self._cancelled.wait()
            while not left.is_set():
                cancel_jobs()
                left.wait(_LOOK_S)

        watcher = threading.Thread(target=watch, daemon=True)
        watcher.start()
        try:
            yield
        finally:
            left.set()
            self._cancelled.set()
            watcher.join()


def _is_own_user(connection: socket.socket) -> bool:
    """Return whether the peer is a process of this user, in addition to the mode of the socket."""
    if not hasattr(socket, "SO_PEERCRED"):
        return True
    layout = struct.Struct("3i")
    peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, layout.size)
    return bool(layout.unpack(peer)[1] == os.geteuid())


def _file_id(place: QueryPlace) -> tuple[int, int] | None:
    """Return device and inode of the socket; None if it was deleted."""
    try:
        found = place.socket.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


if __name__ == "__main__":
    sys.exit(main())
