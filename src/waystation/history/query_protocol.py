"""Protocol between `waystation history sql` and the query process.

A connection carries one request and its replies. Each of them is a MessagePack document behind its
length in four bytes. The client sends nothing after the request: the query process cancels the
query when the connection ends.

The socket is in a folder of the data directory that only its owner can enter. Its name is the
digest of everything on which the result of a query depends except the lake's content, so that a
client never reaches a process with another lake, other Spark settings or another release.
"""

from __future__ import annotations

import hashlib
import os
import re
import socket
import struct
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Literal

import msgspec

from waystation import __version__
from waystation.config import Config

#: Format of a result: JSON lines, CSV, or the lines of `table_rows` for a terminal.
ResultFormat = Literal["json", "csv", "table"]

REQUEST_BYTES_MAX = 1_048_576
REPLY_BYTES_MAX = 1_048_576
#: Longest socket path that all supported systems accept.
_PATH_BYTES_MAX = 100
_LENGTH = struct.Struct(">I")
#: Variables that change how Spark starts or how it reads a lake.
_VARIABLES = re.compile(
    r"(AWS|AZURE|GOOGLE|GCS|SPARK|PYSPARK|HADOOP|YARN|KUBERNETES)_\w+"
    r"|JAVA_HOME|JDK_JAVA_OPTIONS|PYTHONPATH|TZ|WAYSTATION_STORE_URL_FILE"
)


class QueryRequest(msgspec.Struct, frozen=True, tag="query"):
    """Request to run one SQL query."""

    identity: str
    sql: str
    form: ResultFormat


class StopRequest(msgspec.Struct, frozen=True, tag="stop"):
    """Request to end the process."""

    #: Refuse while a query runs.
    only_idle: bool = False


class QueryAccepted(msgspec.Struct, frozen=True, tag="accepted"):
    """The process will run the query. Without this reply, it has not begun."""


class QueryStarted(msgspec.Struct, frozen=True, tag="started"):
    """Spark runs, and the query begins."""

    #: Address of the Spark UI; empty without one.
    ui: str = ""


class QueryProgress(msgspec.Struct, frozen=True, tag="progress"):
    """Completed and known tasks of the query."""

    completed: int
    known: int


class ResultPiece(msgspec.Struct, frozen=True, tag="piece"):
    """Next bytes of the result."""

    data: bytes


class QueryEnded(msgspec.Struct, frozen=True, tag="ended"):
    """The result is complete."""


class QueryFailed(msgspec.Struct, frozen=True, tag="failed"):
    """The query failed."""

    code: str
    error: str
    hint: str = ""


class StopReply(msgspec.Struct, frozen=True, tag="stopping"):
    """Answer to a StopRequest."""

    stopping: bool


Request = QueryRequest | StopRequest
Reply = (
    QueryAccepted
    | QueryStarted
    | QueryProgress
    | ResultPiece
    | QueryEnded
    | QueryFailed
    | StopReply
)
_decode_request: msgspec.msgpack.Decoder[Request] = msgspec.msgpack.Decoder(Request)
_decode_reply: msgspec.msgpack.Decoder[Reply] = msgspec.msgpack.Decoder(Reply)


class QueryPlace(msgspec.Struct, frozen=True):
    """Files of the query process of one identity."""

    folder: Path
    identity: str

    @property
    def socket(self) -> Path:
        """Socket on which the process listens."""
        return self.folder / f"{self.identity}.socket"

    @property
    def lock(self) -> Path:
        """File that the process locks for as long as it listens."""
        return self.folder / f"{self.identity}.lock"

    @property
    def log(self) -> Path:
        """Output of the process except that of Spark."""
        return self.folder / f"{self.identity}.log"


def query_folder(config: Config) -> Path:
    """Return the folder with the sockets of a data directory."""
    return config.data_dir / "history" / "sql"


def query_place(config: Config, environment: Mapping[str, str]) -> QueryPlace:
    """Return the place of the query process for these settings."""
    facts = {
        "versions": [__version__, version("pyspark"), sys.executable, sys.version],
        "lake": config.public_lake,
        # Sources without an option read this store.
        "store": config.store.url,
        "settings": msgspec.to_builtins(config.history),
        "environment": sorted(
            (name, value) for name, value in environment.items() if _VARIABLES.fullmatch(name)
        ),
    }
    digest = hashlib.sha256(msgspec.json.encode(facts)).hexdigest()
    return QueryPlace(query_folder(config), digest[:24])


@contextmanager
def socket_address(path: Path) -> Iterator[str]:
    """Yield an address for `bind` and `connect`, also for a path that is longer than they accept.

    Raise OSError if the path is too long and the system has no other name for its folder.
    """
    if len(os.fsencode(path)) <= _PATH_BYTES_MAX:
        yield str(path)
        return
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        alias = Path(f"/proc/self/fd/{folder}")
        if not alias.exists():
            raise OSError(f"The path of the socket {path} is too long.")
        yield str(alias / path.name)
    finally:
        os.close(folder)


def send(connection: socket.socket, document: Request | Reply) -> None:
    """Send a document. Raise OSError if the peer has closed the connection."""
    data = msgspec.msgpack.encode(document)
    connection.sendall(_LENGTH.pack(len(data)) + data)


def receive_request(connection: socket.socket) -> Request | None:
    """Return the request; None at the end of the connection. Raise the errors of `_receive`."""
    data = _receive(connection, REQUEST_BYTES_MAX)
    return None if data is None else _decode_request.decode(data)


def receive_reply(connection: socket.socket) -> Reply | None:
    """Return the next reply; None at the end of the connection. Raise the errors of `_receive`."""
    data = _receive(connection, REPLY_BYTES_MAX)
    return None if data is None else _decode_reply.decode(data)


def _receive(connection: socket.socket, bytes_max: int) -> bytes | None:
    """Return the next document; None at the end of the connection, also within a document.

    Raise msgspec.MsgspecError if it is longer than `bytes_max`.
    """
    header = _read(connection, _LENGTH.size)
    if header is None:
        return None
    (length,) = _LENGTH.unpack(header)
    if length > bytes_max:
        raise msgspec.DecodeError(f"A document of {length:,} bytes exceeds {bytes_max:,}.")
    return _read(connection, length)


def _read(connection: socket.socket, length: int) -> bytes | None:
    data = bytearray()
    while len(data) < length:
        try:
            more = connection.recv(min(length - len(data), 65_536))
        except ConnectionError:
            return None
        if not more:
            return None
        data += more
    return bytes(data)
