"""`waystation history sql` with a process that keeps Spark, and its crashes."""

from __future__ import annotations

import errno
import json
import os
import signal
import socket
import struct
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.cli.conftest import Run, clean_environment, command, run  # noqa: F401 (a fixture)
from tests.helpers.processes import ended
from tests.helpers.waiting import eventually_sync
from tests.history.local_ingest import local_ingest
from tests.history.log_writer import LogWriter, envelopes
from tests.history.quick_spark import QUICK
from waystation.config import Config
from waystation.errors import SparkStartError
from waystation.history import query_client
from waystation.history.query_client import QueryProcess, stop_idle_processes, stop_processes
from waystation.history.query_protocol import (
    REPLY_BYTES_MAX,
    REQUEST_BYTES_MAX,
    QueryFailed,
    QueryPlace,
    QueryRequest,
    ResultPiece,
    StopReply,
    StopRequest,
    query_folder,
    query_place,
    receive_reply,
    receive_request,
    send,
    socket_address,
)
from waystation.history.query_server import _READS, QueryServer

ORDERS = "t.default.orders.0"
COUNT = "select count(*) n from waystation.messages"
#: Rows without an end for a test, of which the first ones come soon: a Spark job for every 1,000.
ENDLESS = "select id from range(0, 100000000, 1, 100000)"
SECONDS_MAX = 400


def restore_interrupts() -> None:
    """Let a child process react to SIGINT."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


class Querier:
    """Runs `history sql` on one data directory, as a user does."""

    def __init__(self, data: Path) -> None:
        self.data = data
        self.lake = data / "lake"

    def start(self, *arguments: str, **environment: str) -> subprocess.Popen[str]:
        """Start a query that prints JSON."""
        where = ("--data", str(self.data), "--master", "local[2]", "--json")
        return subprocess.Popen(
            command("history", "sql", *arguments, *where),
            env={**clean_environment(), **QUICK, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            # A test worker in the background may ignore Ctrl-C, and its children would, too.
            preexec_fn=restore_interrupts,
        )

    def run(self, *arguments: str, **environment: str) -> tuple[int, str, str]:
        """Return exit code, standard output and standard error of a query."""
        return finish(self.start(*arguments, **environment))

    def count(self, *arguments: str, **environment: str) -> int:
        """Return the number of messages in the lake."""
        code, output, problem = self.run(COUNT, *arguments, **environment)
        assert code == 0, problem
        found: int = json.loads(output)["n"]
        return found

    def sockets(self) -> list[Path]:
        """Return the sockets of all processes."""
        return sorted(query_folder(Config(data=str(self.data))).glob("*.socket"))

    def pid(self) -> int:
        """Return the process id of the one process that listens."""
        (file,) = self.sockets()
        with connected(file) as connection:
            peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        return int(struct.unpack("3i", peer)[0])


def java_of(pid: int) -> int:
    """Return the process id of the Java process of a query process."""
    for found in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            name, _, rest = found.read_text(encoding="utf-8").rpartition(") ")
            if name.endswith("(java") and int(rest.split()[1]) == pid:
                return int(found.parent.name)
    raise AssertionError(f"Process {pid} has no Java process.")


def finish(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    """Return exit code, standard output and standard error of a process."""
    output, problem = process.communicate(timeout=SECONDS_MAX)
    return process.returncode, output, problem


@contextmanager
def connected(file: Path) -> Iterator[socket.socket]:
    """Connect to a socket."""
    with (
        socket.socket(socket.AF_UNIX) as connection,
        socket_address(file) as address,
    ):
        connection.connect(address)
        yield connection


def first_row(process: subprocess.Popen[str]) -> str:
    """Wait until a query returns rows."""
    assert process.stdout is not None
    return process.stdout.readline()


@pytest.fixture
def querier(tmp_path: Path, writer: LogWriter, store_url: str) -> Iterator[Querier]:
    """Yield a runner of queries over a lake with 10 messages."""
    querier = Querier(tmp_path / "data")
    writer.create(ORDERS)
    writer.append(ORDERS, envelopes(10))
    local_ingest(querier.lake, store_url).run()
    yield querier
    querier.run("--stop")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_queries_share_one_spark_session_and_see_new_commits(
    querier: Querier, writer: LogWriter, store_url: str, tmp_path: Path
) -> None:
    # Two commands at once start one process.
    both = [querier.start(COUNT), querier.start(COUNT)]
    answers = [finish(each) for each in both]
    pid = querier.pid()
    # A commit between two queries
    writer.append(ORDERS, envelopes(5, first=10))
    local_ingest(querier.lake, store_url).run()
    grown = querier.count()
    # Errors, changed settings and dropped views of one query do not affect the next one
    wrong = querier.run("selekt")
    querier.run("set spark.sql.session.timeZone = Asia/Tokyo")
    querier.run("drop view waystation.messages")
    zone = querier.run("select current_timezone() zone")
    # A result that is longer than a piece
    long = querier.run("select id from range(50000)")
    after = querier.count()

    assert [code for code, _, _ in answers] == [0, 0], answers
    assert [json.loads(output) for _, output, _ in answers] == [{"n": 10}] * 2
    assert (grown, after) == (15, 15)
    assert (wrong[0], "selekt" in wrong[2]) == (2, True)
    assert json.loads(zone[1]) == {"zone": "UTC"}
    ids = [json.loads(line)["id"] for line in long[1].splitlines()]
    assert sorted(ids) == [*range(50_000)]
    assert querier.pid() == pid
    folder = querier.sockets()[0].parent
    assert folder.stat().st_mode & 0o777 == 0o700
    assert querier.sockets()[0].stat().st_mode & 0o777 == 0o600
    # A command that ends in a query cancels it, and the process is idle then
    for number, code in ((signal.SIGKILL, -signal.SIGKILL), (signal.SIGINT, 130)):
        process = querier.start(ENDLESS)
        assert first_row(process)
        process.send_signal(number)
        assert finish(process)[0] == code
    assert querier.count() == 15
    assert querier.pid() == pid
    # A query does not wait for a statement that Spark executes while it plans it.
    copy = tmp_path / "copy"
    # The statement has one task, so that the other core is free.
    endless = "select id from range(0, 1000000000000000, 1, 1) where id < 0"
    process = querier.start(f"insert overwrite directory '{copy}' using parquet {endless}")
    eventually_sync(copy.exists, timeout=120)
    assert querier.count() == 15
    assert process.poll() is None
    process.kill()
    finish(process)
    # Another lake is answered by another process, and the idle one ends
    other = tmp_path / "other"
    local_ingest(other, store_url).run()
    writer.append(ORDERS, envelopes(1, first=15))
    local_ingest(other, store_url).run()
    assert querier.count("--lake", str(other)) == 16
    assert ended(pid, seconds=60)
    pid = querier.pid()
    # The end on request
    assert querier.run("--stop")[:2] == (0, '{"stopped":1}\n')
    assert ended(pid, seconds=5)
    assert querier.sockets() == []
    assert querier.run("--stop")[:2] == (0, '{"stopped":0}\n')


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_killed_java_process_is_reported_and_ends_its_query_process(querier: Querier) -> None:
    process = querier.start(ENDLESS)
    assert first_row(process)
    pid = querier.pid()
    os.kill(java_of(pid), signal.SIGKILL)
    code, _, problem = finish(process)
    assert code == 1
    assert "The process of Spark has ended." in problem
    assert "history.spark-gone" in problem
    assert ended(pid, seconds=60)
    assert querier.sockets() == []


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_killed_query_process_is_reported_and_replaced_and_ends_when_idle(
    querier: Querier,
) -> None:
    idle = {"WAYSTATION_HISTORY_SQL_IDLE_SECONDS": "1"}
    process = querier.start(ENDLESS, **idle)
    assert first_row(process)
    os.kill(querier.pid(), signal.SIGKILL)
    code, _, problem = finish(process)
    assert code == 1
    assert "The process that ran the query has ended." in problem
    assert "history.spark-gone" in problem
    assert "Run the query again" in problem
    # The socket is left, and the next query replaces it.
    (stale,) = querier.sockets()
    assert querier.count(**idle) == 10
    # An idle process ends, and takes its socket with it.
    eventually_sync(lambda: not stale.exists())


def test_stop_without_a_query_process_ignores_a_stale_socket(tmp_path: Path) -> None:
    config = Config(data=str(tmp_path))
    folder = query_folder(config)
    folder.mkdir(parents=True, mode=0o700)
    with socket.socket(socket.AF_UNIX) as stale, socket_address(folder / "a.socket") as address:
        stale.bind(address)
    querier = Querier(tmp_path)
    stop_idle_processes(query_place(config, {}))
    assert querier.run("--stop")[:2] == (0, '{"stopped":0}\n')


def test_sql_needs_either_a_query_or_stop(run: Run) -> None:  # noqa: F811
    for arguments in ([], ["select 1", "--stop"]):
        refused = run("history", "sql", *arguments)
        assert refused.returncode == 2
        assert "either a query or --stop" in refused.stderr


def test_query_place_differs_for_everything_that_changes_an_answer(tmp_path: Path) -> None:
    def identity(
        variables: dict[str, str] | None = None, store: str = "redis://a", **history: object
    ) -> str:
        sections = {"store": {"url": store}, "history": history}
        config = msgspec.convert({"data": str(tmp_path), **sections}, Config)
        return query_place(config, variables or {}).identity

    same = identity()
    assert identity({"TERM": "xterm", "PWD": "/"}) == same
    others = [
        identity(store="redis://b"),
        identity(lake="/other"),
        identity(memory="1g"),
        identity(master="local[1]"),
        identity(spark={"spark.sql.ansi.enabled": "false"}),
        identity({"AWS_ACCESS_KEY_ID": "a"}),
        identity({"SPARK_CONF_DIR": "/conf"}),
    ]
    assert len({same, *others}) == 1 + len(others)


def test_a_document_beyond_its_limit_is_refused_and_a_cut_one_ends_the_connection() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        send(ours, QueryRequest("i", "select 1", "csv"))
        assert receive_request(theirs) == QueryRequest("i", "select 1", "csv")
        send(theirs, ResultPiece(b"\xff\x00"))
        assert receive_reply(ours) == ResultPiece(b"\xff\x00")
        ours.sendall(struct.pack(">I", REQUEST_BYTES_MAX + 1))
        with pytest.raises(msgspec.DecodeError, match="exceeds"):
            receive_request(theirs)
        theirs.sendall(struct.pack(">I", REPLY_BYTES_MAX) + b"cut")
        theirs.close()
        assert receive_reply(ours) is None


def test_a_socket_with_a_long_path_is_reached(tmp_path: Path) -> None:
    folder = tmp_path.joinpath(*["a-long-name-of-a-folder"] * 6)
    folder.mkdir(parents=True)
    file = folder / "query.socket"
    with socket.socket(socket.AF_UNIX) as listener:
        with socket_address(file) as address:
            listener.bind(address)
        listener.listen()
        with connected(file) as connection:
            accepted, _ = listener.accept()
            with accepted:
                send(connection, StopRequest())
                assert receive_request(accepted) == StopRequest()
                send(accepted, QueryFailed("c", "e"))
                assert receive_reply(connection) == QueryFailed("c", "e")


@pytest.mark.parametrize(
    ("sql", "is_read"),
    [
        ("select 1", True),
        ("-- messages\n /* all */ ((SELECT 1) union select 2)", True),
        ("with a as (select 1)\nselect * from a", True),
        ("from range(3)", True),
        ("create table t as select 1", False),
        ("insert into t select 1", False),
        ("with a as (select 1)\ninsert into t select * from a", False),
        ("from range(3) INSERT into t select *", False),
        ("set a = b", False),
        ("/* */ " * 1000 + "set a = b", False),
        ("drop view waystation.messages", False),
    ],
)
def test_reads_are_statements_that_spark_only_plans(sql: str, is_read: bool) -> None:
    assert bool(_READS.match(sql)) == is_read


class BusyListener(socket.socket):
    """A listener whose first call fails because the process has too many open files."""

    is_busy = True

    def accept(self) -> Any:
        if self.is_busy:
            self.is_busy = False
            raise OSError(errno.EMFILE, "Too many open files")
        return super().accept()


@pytest.fixture
def place(tmp_path: Path) -> QueryPlace:
    """Return the place of a query process that is not started."""
    found = query_place(Config(data=str(tmp_path)), os.environ)
    found.folder.mkdir(parents=True, mode=0o700)
    return found


@contextmanager
def listening(place: QueryPlace, listener: socket.socket) -> Iterator[socket.socket]:
    """Listen on the socket of a place."""
    with listener, socket_address(place.socket) as address:
        listener.bind(address)
        listener.listen()
        yield listener


def test_accept_with_too_many_open_files_serves_the_next_connection(
    place: QueryPlace, tmp_path: Path
) -> None:
    with listening(place, BusyListener(socket.AF_UNIX)) as listener:
        server = QueryServer(Config(data=str(tmp_path)), place, listener)
        threading.Thread(target=server._accept, daemon=True).start()
        with connected(place.socket) as connection:
            connection.settimeout(60)
            send(connection, StopRequest(only_idle=True))
            assert receive_reply(connection) == StopReply(False)


def test_terminate_returns_while_the_thread_of_the_handler_has_the_lock_of_the_event(
    place: QueryPlace, tmp_path: Path
) -> None:
    with listening(place, socket.socket(socket.AF_UNIX)) as listener:
        server = QueryServer(Config(data=str(tmp_path)), place, listener)
        with server._stopped._cond:
            handler = threading.Thread(target=server.terminate, daemon=True)
            handler.start()
            handler.join(60)
            assert not handler.is_alive()


def test_process_that_does_not_answer_fails_the_query_and_not_the_stop(
    place: QueryPlace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("_REPLY_S_MAX", "_STOP_S_MAX"):
        monkeypatch.setattr(query_client, name, 0.05)
    monkeypatch.setattr(query_client, "_START_S_MAX", 0.5)
    ignore: Any = lambda *_: None  # noqa: E731
    with listening(place, socket.socket(socket.AF_UNIX)):
        process = QueryProcess(Config(data=str(tmp_path)))
        rows = process.run(
            COUNT, "json", before_start=ignore, on_started=ignore, on_progress=ignore
        )
        with pytest.raises(SparkStartError, match="did not accept the query"):
            next(rows)
        assert stop_processes(Config(data=str(tmp_path))) == 0
