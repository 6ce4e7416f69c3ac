"""Stores that fail on demand: plain servers, damaged files, scripted replies, a proxy."""

from __future__ import annotations

import asyncio
import itertools
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path

import hiredis

from waystation.store.address import Address
from waystation.store.client import Store
from waystation.store.embedded.server import supervisor
from waystation.store.plan import server_program
from waystation.testing.servers import on_cluster


def address_of(text: str) -> Address:
    """The store of the tests as another process is told of it: a path, or a port."""
    at = Address(path=text) if "/" in text else Address(host="127.0.0.1", port=int(text))
    return at.clustered() if on_cluster() else at


@asynccontextmanager
async def store_at(
    address: Address, *, call_seconds_max: float = 5.0, test_mode: bool = False
) -> AsyncIterator[Store]:
    """A connected-on-demand client."""
    store = Store(address, call_seconds_max=call_seconds_max, test_mode=test_mode)
    try:
        yield store
    finally:
        await store.close()


_READY_SECONDS_MAX = 20.0


class PlainServer:
    """One server process on a Unix socket; kill and start it at will."""

    def __init__(self, folder: Path, *options: str, wrapper: tuple[str, ...] = ()) -> None:
        self.folder = folder
        self.address = Address(path=str(folder / "plain.sock"))
        self._command = [
            *wrapper,
            server_program(),
            *("--port", "0", "--unixsocket", self.address.path, "--dir", str(folder)),
            *("--save", "", "--logfile", str(folder / "server.log"), *options),
        ]
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Returns when the server has loaded its data, or raises when it ends before."""
        self.process = subprocess.Popen(self._command, stdout=subprocess.DEVNULL)
        until = time.monotonic() + _READY_SECONDS_MAX
        while not supervisor.is_ready(self.address.path):
            assert self.process.poll() is None, (self.folder / "server.log").read_text()
            assert time.monotonic() < until, "the server does not answer"
            time.sleep(0.005)

    def kill(self) -> None:
        """kill -9; returns when the process is gone."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()


@contextmanager
def plain_server(*options: str) -> Iterator[PlainServer]:
    """A plain server in a folder of its own, with a short path, for the length of the block."""
    folder = Path(tempfile.mkdtemp(prefix="ws-"))
    server = PlainServer(folder, *options)
    try:
        server.start()
        yield server
    finally:
        server.kill()
        shutil.rmtree(folder, ignore_errors=True)


def newest_part(folder: Path) -> Path:
    """The part of an append-only file that the server of `folder` appends to."""
    (part,) = (folder / "appendonlydir").glob("*.incr.aof")
    return part


def grow(folder: Path, commands: int) -> None:
    """Adds that many SETs, as if the server had written them; much quicker than calling it."""
    with newest_part(folder).open("ab") as part:
        for number in range(commands):
            key = b"grown-%07d" % number
            part.write(b"*3\r\n$3\r\nSET\r\n$%d\r\n%b\r\n$1\r\nx\r\n" % (len(key), key))


def tear(folder: Path) -> None:
    """Cuts the last command in two, as a crash in the middle of a write does."""
    part = newest_part(folder)
    with part.open("r+b") as file:
        file.truncate(part.stat().st_size - 5)


def spoil(folder: Path) -> bytes:
    """Overwrites the beginning of a command in the middle; returns the content as it is then."""
    part = newest_part(folder)
    content = bytearray(part.read_bytes())
    # A changed letter within a value would be a value too, and what begins with # is a comment.
    place = content.index(b"\r\n*", len(content) // 2) + 2
    content[place : place + 9] = b"!spoiled!"
    part.write_bytes(content)
    return bytes(content)


#: The answer to one command: a line of the protocol without its end, or None for a plain OK.
Answer = Callable[[list[bytes]], bytes | None]

#: At the end of an answer: the connection is closed after what stands before it.
HANG_UP = b"hang up"


def _usual(command: list[bytes]) -> bytes:
    """The reply of a store that has no script."""
    if command[:2] == [b"SCRIPT", b"EXISTS"]:
        return b"*%d\r\n" % len(command[2:]) + b"\r\n".join([b":0"] * len(command[2:]))
    return b"+OK"


@asynccontextmanager
async def peer_that(answer: Answer) -> AsyncIterator[Address]:
    """Listens on a free loopback port for the length of the block."""
    writers: set[asyncio.StreamWriter] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.add(writer)
        parser = hiredis.Reader()
        while data := await reader.read(65536):
            parser.feed(data)
            while (command := parser.gets()) is not False:
                said = answer(command)
                if said is not None and said.endswith(HANG_UP):
                    writer.write(said.removesuffix(HANG_UP))
                    writer.close()
                    return
                writer.write((said if said is not None else _usual(command)) + b"\r\n")

    listener = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield Address(host="127.0.0.1", port=listener.sockets[0].getsockname()[1])
    finally:
        listener.close()
        for writer in writers:
            writer.transport.abort()


class Fate(Enum):
    """What happens to bytes on their way."""

    PASS = auto()
    #: Kept back until the fate is PASS again.
    HOLD = auto()
    #: Never arrives, and nobody is told: a half-open connection.
    SWALLOW = auto()
    #: Never arrives, and both ends of the connection are closed.
    CUT = auto()


class Proxy:
    """Listens on a free loopback port."""

    def __init__(self, target: Address) -> None:
        self._target = target
        self._listener: asyncio.Server | None = None
        self._links: dict[asyncio.Task[None], list[asyncio.StreamWriter]] = {}
        self._changed = asyncio.Condition()
        self._fates = {"requests": Fate.PASS, "replies": Fate.PASS}
        self.delay_seconds = 0.0
        self.met = asyncio.Event()
        #: Connections that were ever made, chunks and bytes that ever came from clients.
        self.connections = 0
        self.chunks = 0
        self.received = b""

    @property
    def address(self) -> Address:
        """Where a client connects to."""
        assert self._listener is not None
        address = Address(host="127.0.0.1", port=self._listener.sockets[0].getsockname()[1])
        return address if self._target.cluster is None else address.clustered()

    @property
    def connections_open(self) -> int:
        """Connections that neither end has closed."""
        return len(self._links)

    async def set_fates(self, *, requests: Fate = Fate.PASS, replies: Fate = Fate.PASS) -> None:
        """Changes what happens from now on; what was held may go on."""
        async with self._changed:
            self._fates = {"requests": requests, "replies": replies}
            self.met.clear()
            self._changed.notify_all()

    def cut(self) -> None:
        """Ends all connections at once, as a reset."""
        for writers in self._links.values():
            for writer in writers:
                writer.transport.abort()

    async def start(self) -> None:
        self._listener = await asyncio.start_server(self._accept, "127.0.0.1", 0)

    async def close(self) -> None:
        assert self._listener is not None
        self._listener.close()
        await self.set_fates(requests=Fate.CUT, replies=Fate.CUT)
        self.cut()
        await asyncio.gather(*self._links)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        task = asyncio.current_task()
        assert task is not None
        self._links[task] = [writer]
        try:
            if self._target.path:
                upstream = await asyncio.open_unix_connection(self._target.path)
            else:
                upstream = await asyncio.open_connection(self._target.host, self._target.port)
            self._links[task].append(upstream[1])
            async with asyncio.TaskGroup() as both:
                both.create_task(self._pump(reader, upstream[1], "requests"))
                both.create_task(self._pump(upstream[0], writer, "replies"))
        except* (OSError, EOFError):
            pass
        finally:
            for each in self._links.pop(task):
                each.transport.abort()

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, direction: str
    ) -> None:
        while data := await reader.read(65536):
            if direction == "requests":
                self.chunks += 1
                self.received += data
            if self._fates[direction] is not Fate.PASS:
                self.met.set()
            async with self._changed:
                await self._changed.wait_for(lambda: self._fates[direction] is not Fate.HOLD)
            if self._fates[direction] is Fate.CUT:
                break
            if self._fates[direction] is Fate.PASS:
                await asyncio.sleep(self.delay_seconds)
                writer.write(data)
                await writer.drain()
        # One end is gone, so the other one goes too.
        raise EOFError


@asynccontextmanager
async def proxy_to(target: Address) -> AsyncIterator[Proxy]:
    """Runs a proxy for the length of the block."""
    proxy = Proxy(target)
    await proxy.start()
    try:
        yield proxy
    finally:
        await proxy.close()


#: Which calls to trace, and how: with threads, paths, times, and without any content.
STRACE = (
    *("-f", "--seccomp-bpf", "-y", "-ttt", "-T", "-s", "0", "-qq"),
    *("-e", "trace=write,fsync,fdatasync,unlink,execve", "-e", "signal=none"),
)

_LINE = re.compile(r"(\d+) +(\d+\.\d+) (.*)")
# A call that its process did not live to see the end of has no result, or a question mark.
_CALL = re.compile(r"(\w+)\((.*?)(?: <unfinished \.\.\.>|\) += (?:\?.*|(-?\d+).*<([\d.]+)>))$")
_RESUMED = re.compile(r"<\.\.\. (\w+) resumed>.* = (-?\d+).*<([\d.]+)>$")


@dataclass(frozen=True)
class Call:
    """One system call that has returned."""

    name: str
    arguments: str
    result: int
    began: float
    ended: float


#: The result of a call that had not returned when its process was killed.
UNFINISHED = -1000


def calls_in(trace: Path) -> Iterator[Call]:
    """Calls in the order of their ends; last those that never ended."""
    pending: dict[str, tuple[str, str, float]] = {}
    for line in trace.read_text(errors="replace").splitlines():
        found = _LINE.match(line)
        if found is None:
            continue
        thread, at, text = found.group(1), float(found.group(2)), found.group(3)
        if resumed := _RESUMED.match(text):
            name, arguments, began = pending.pop(thread)
            assert name == resumed.group(1), line
            seconds = float(resumed.group(3))
            yield Call(name, arguments, int(resumed.group(2)), began, began + seconds)
        elif call := _CALL.match(text):
            name, arguments, result, seconds = call.groups()
            if result is None:
                pending[thread] = (name, arguments, at)
            else:
                yield Call(name, arguments, int(result), at, at + float(seconds))
    for name, arguments, began in pending.values():
        yield Call(name, arguments, UNFINISHED, began, float("inf"))


@dataclass(frozen=True, kw_only=True)
class Synced:
    """What a power cut would leave of a file."""

    #: Bytes that reached the operating system, and those that were on their way to it at the end.
    written: int
    unfinished: int
    #: Bytes that surely reached the disk.
    synced: int
    #: When the last sync that came back had begun, how many there were, how long the longest took.
    last_began: float
    syncs: int
    longest_seconds: float
    #: The most that a power cut at any moment could have cost: from one sync to the next one's end.
    widest_seconds: float


def synced_part(trace: Path, file: Path, *, size_before: int) -> Synced:
    """Follows the writes and syncs of one file.

    A sync covers what was written before it began, so a write that ended while it ran does not
    count: the strictest reading of what the disk has.
    """
    writes: list[tuple[float, int]] = []
    syncs: list[tuple[float, float]] = []
    synced, unfinished = size_before, 0
    for call in calls_in(trace):
        if f"<{file}>" not in call.arguments:
            continue
        if call.result == UNFINISHED:
            size = call.arguments.rpartition(" ")[2]
            unfinished += int(size) if call.name == "write" else 0
        elif call.name == "write":
            writes.append((call.ended, call.result))
        else:
            assert call.result == 0
            syncs.append((call.began, call.ended))
            covered = sum(size for ended, size in writes if ended <= call.began)
            synced = max(synced, size_before + covered)
    written = size_before + sum(size for _, size in writes)
    return Synced(
        written=written,
        unfinished=unfinished,
        synced=synced,
        last_began=max((began for began, _ in syncs), default=0.0),
        syncs=len(syncs),
        longest_seconds=max((ended - began for began, ended in syncs), default=0.0),
        widest_seconds=max(
            (later[1] - earlier[0] for earlier, later in itertools.pairwise(syncs)), default=0.0
        ),
    )
