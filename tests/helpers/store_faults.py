"""Faults of a store: servers to kill, damaged files, scripted replies, a proxy that drops bytes."""

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
    """Return the address of the test store that `text` names by a path or a port."""
    at = Address(path=text) if "/" in text else Address(host="127.0.0.1", port=int(text))
    return at.clustered() if on_cluster() else at


@asynccontextmanager
async def store_at(
    address: Address, *, call_seconds_max: float = 5.0, test_mode: bool = False
) -> AsyncIterator[Store]:
    """Yield a store client that connects on its first call."""
    store = Store(address, call_seconds_max=call_seconds_max, test_mode=test_mode)
    try:
        yield store
    finally:
        await store.close()


_READY_SECONDS_MAX = 20.0


class PlainServer:
    """Server process on a Unix socket, without a supervisor. A test can kill and restart it."""

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
        """Start the server and wait until it has loaded its data. Fail if it exits."""
        self.process = subprocess.Popen(self._command, stdout=subprocess.DEVNULL)
        until = time.monotonic() + _READY_SECONDS_MAX
        while not supervisor.is_ready(self.address.path):
            assert self.process.poll() is None, (self.folder / "server.log").read_text()
            assert time.monotonic() < until, "the server does not answer"
            time.sleep(0.005)

    def kill(self) -> None:
        """Kill the server with SIGKILL and wait for its exit."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()


@contextmanager
def plain_server(*options: str) -> Iterator[PlainServer]:
    """Run a server in a temporary folder for the length of the block. Its path is short."""
    folder = Path(tempfile.mkdtemp(prefix="ws-"))
    server = PlainServer(folder, *options)
    try:
        server.start()
        yield server
    finally:
        server.kill()
        shutil.rmtree(folder, ignore_errors=True)


def newest_part(folder: Path) -> Path:
    """Return the part of the append-only file that the server of `folder` appends to."""
    (part,) = (folder / "appendonlydir").glob("*.incr.aof")
    return part


def grow(folder: Path, commands: int) -> None:
    """Append `commands` SET commands to the file. This is much faster than calling the server."""
    with newest_part(folder).open("ab") as part:
        for number in range(commands):
            key = b"grown-%07d" % number
            part.write(b"*3\r\n$3\r\nSET\r\n$%d\r\n%b\r\n$1\r\nx\r\n" % (len(key), key))


def tear(folder: Path) -> None:
    """Cut off the end of the last command, as a crash during a write does."""
    part = newest_part(folder)
    with part.open("r+b") as file:
        file.truncate(part.stat().st_size - 5)


def spoil(folder: Path) -> bytes:
    """Overwrite the start of a command in the middle of the file. Return the damaged content."""
    part = newest_part(folder)
    content = bytearray(part.read_bytes())
    # Change a command, because a changed value is a valid value; `#` would start a comment.
    place = content.index(b"\r\n*", len(content) // 2) + 2
    content[place : place + 9] = b"!spoiled!"
    part.write_bytes(content)
    return bytes(content)


#: Reply to one command: a line of the protocol without its end, or None for the usual reply.
Answer = Callable[[list[bytes]], bytes | None]

#: End of a reply after which the server closes the connection.
HANG_UP = b"hang up"


def _usual(command: list[bytes]) -> bytes:
    """Return the reply of a store that has no script."""
    if command[:2] == [b"SCRIPT", b"EXISTS"]:
        return b"*%d\r\n" % len(command[2:]) + b"\r\n".join([b":0"] * len(command[2:]))
    return b"+OK"


@asynccontextmanager
async def peer_that(answer: Answer) -> AsyncIterator[Address]:
    """Run a server that answers by script, on a free loopback port, for the length of the block."""
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
    """Fault of one direction of a proxy."""

    PASS = auto()
    #: Bytes wait until the fault is PASS again.
    HOLD = auto()
    #: Bytes are dropped and the connection stays open, like a half-open one.
    SWALLOW = auto()
    #: Bytes are dropped and both ends of the connection are closed.
    CUT = auto()


class Proxy:
    """Proxy before a store, on a free loopback port. A test sets the fault of each direction."""

    def __init__(self, target: Address) -> None:
        self._target = target
        self._listener: asyncio.Server | None = None
        self._links: dict[asyncio.Task[None], list[asyncio.StreamWriter]] = {}
        self._changed = asyncio.Condition()
        self._fates = {"requests": Fate.PASS, "replies": Fate.PASS}
        self.delay_seconds = 0.0
        self.met = asyncio.Event()
        #: Totals since the start: connections, and chunks and bytes from clients.
        self.connections = 0
        self.chunks = 0
        self.received = b""

    @property
    def address(self) -> Address:
        """Address to which clients connect."""
        assert self._listener is not None
        address = Address(host="127.0.0.1", port=self._listener.sockets[0].getsockname()[1])
        return address if self._target.cluster is None else address.clustered()

    @property
    def connections_open(self) -> int:
        """Number of connections that neither end has closed."""
        return len(self._links)

    async def set_fates(self, *, requests: Fate = Fate.PASS, replies: Fate = Fate.PASS) -> None:
        """Set the fault of each direction. Held bytes follow the new fault."""
        async with self._changed:
            self._fates = {"requests": requests, "replies": replies}
            self.met.clear()
            self._changed.notify_all()

    def cut(self) -> None:
        """Reset all connections."""
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
        # End the other direction too, because this end has closed.
        raise EOFError


@asynccontextmanager
async def proxy_to(target: Address) -> AsyncIterator[Proxy]:
    """Run a proxy for the length of the block."""
    proxy = Proxy(target)
    await proxy.start()
    try:
        yield proxy
    finally:
        await proxy.close()


#: Options of strace: writes, syncs and deletions of all threads, with paths and times.
STRACE = (
    *("-f", "--seccomp-bpf", "-y", "-ttt", "-T", "-s", "0", "-qq"),
    *("-e", "trace=write,fsync,fdatasync,unlink,execve", "-e", "signal=none"),
)

_LINE = re.compile(r"(\d+) +(\d+\.\d+) (.*)")
# A call during which its process was killed has no result, or a question mark.
_CALL = re.compile(r"(\w+)\((.*?)(?: <unfinished \.\.\.>|\) += (?:\?.*|(-?\d+).*<([\d.]+)>))$")
_RESUMED = re.compile(r"<\.\.\. (\w+) resumed>.* = (-?\d+).*<([\d.]+)>$")


@dataclass(frozen=True)
class Call:
    """System call that has returned."""

    name: str
    arguments: str
    result: int
    began: float
    ended: float


#: The result of a call that had not returned when its process was killed.
UNFINISHED = -1000


def calls_in(trace: Path) -> Iterator[Call]:
    """Yield the system calls of a trace in the order of their ends; unfinished calls come last."""
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
    """Bytes of a file that a power cut would leave."""

    #: Bytes that reached the operating system, and bytes of unfinished writes.
    written: int
    unfinished: int
    #: Bytes that surely reached the disk.
    synced: int
    #: Start of the last sync that returned, number of syncs, duration of the longest one.
    last_began: float
    syncs: int
    longest_seconds: float
    #: Longest time of which a power cut could lose the writes: from a sync to the next one's end.
    widest_seconds: float


def synced_part(trace: Path, file: Path, *, size_before: int) -> Synced:
    """Compute the synced bytes of one file from a trace of its writes and syncs.

    A sync covers only writes that ended before it started. Writes that ended while it ran do not
    count, because this is the strictest reading of the guarantee.
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
