"""Writer of logs for tests: real streams in a real store, without a node."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import TracebackType

import msgspec

from waystation.logs import keys
from waystation.logs.protocol import Appended, Retention
from waystation.logs.streams import StreamLogs
from waystation.messages.envelope import Envelope, pack
from waystation.store.address import parse_address
from waystation.store.client import Store
from waystation.transactions.log_entry import AttemptDetail, StepDetail

KEEP_ALL = Retention()


def envelopes(count: int, *, first: int = 0, group: str | None = None) -> list[Envelope]:
    """Return messages `m-0`, `m-1`, … with small JSON payloads."""
    return [
        Envelope(
            id=f"m-{number}",
            project="default",
            data=b'{"n":%d}' % number,
            group=group,
            headers=(("content-type", "application/json"),),
        )
        for number in range(first, first + count)
    ]


def change(number: int, *, mark: str = "") -> bytes:
    """Return an entry of the record log of a cell: one step of a transaction of its own."""
    attempt = AttemptDetail("1", f"step{mark}", 1, "success", 5, 6, "n", "", 0)
    words = f"step tx-{number:040} {number + 1} 1 running -"
    return msgspec.msgpack.encode([1, "ds-test", [[words, StepDetail(attempts=[attempt])]]])


class LogWriter:
    """Blocking writer that creates logs and appends to them."""

    def __init__(self, url: str) -> None:
        self._runner = asyncio.Runner()
        self._store = Store(parse_address(url))
        self._logs = StreamLogs(self._store)

    def __enter__(self) -> LogWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._runner.run(self._store.close())
        self._runner.close()

    def flush(self) -> None:
        """Empty the store and stamp it as a data set."""
        self.command("FLUSHALL")
        self.command("HSET", "waystation.format", "dataset", "ds-test")

    def command(self, *words: str | bytes | int) -> object:
        """Send a command to the store and return the reply."""

        async def send() -> object:
            return await self._store.call(*words)

        return self._runner.run(send())

    def backup(self) -> dict[bytes, bytes]:
        """Return a dump of all keys of the store."""
        keys = self.command("KEYS", "*")
        assert isinstance(keys, list)
        return {key: self.command("DUMP", key) for key in keys}  # type: ignore[misc]

    def restore(self, backup: dict[bytes, bytes]) -> None:
        """Replace all keys of the store by those of a backup."""
        self.command("FLUSHALL")
        for key, dumped in backup.items():
            self.command("RESTORE", key, 0, dumped)

    def create(self, log: str, partitions: int = 1, *, max_bytes: int | None = None) -> None:
        """Create a log that keeps everything, or refuses entries beyond a limit."""
        self._runner.run(self._logs.create(log, partitions, Retention(max_bytes=max_bytes)))

    def seal(self, log: str, partition: int = 0) -> None:
        """Seal a partition, so that it accepts no more entries."""
        self._runner.run(self._logs.seal(log, partition, 1))

    def append(self, log: str, messages: Sequence[Envelope], partition: int = 0) -> Appended:
        """Append messages; return the receipt of the last batch."""
        return self.append_raw(log, [pack(message) for message in messages], partition)

    def append_raw(self, log: str, payloads: Sequence[bytes], partition: int = 0) -> Appended:
        """Append bytes as entries; return the receipt of the last batch."""

        async def append() -> Appended:
            receipt = Appended((), 0)
            for start in range(0, len(payloads), 500):
                part = payloads[start : start + 500]
                receipt = await self._logs.append(log, partition, part)
            return receipt

        return self._runner.run(append())

    def trim_to(self, log: str, bytes_max: int, partition: int = 0) -> int:
        """Trim a partition to at most these bytes; return its first offset."""
        retention = Retention(max_bytes=bytes_max, policy="drop_and_count")

        async def trim() -> int:
            while (await self._logs.trim(log, partition, retention)).more:
                pass
            await self._logs.set_retention(log, partition, KEEP_ALL)
            return (await self._logs.state(log, partition)).first

        return self._runner.run(trim())

    def expire(self, log: str, partition: int = 0) -> int:
        """Trim a partition as far as age permits, with an age limit of 0; return its new start."""

        async def trim() -> int:
            last_ms = (await self._logs.state(log, partition)).last_ms
            seconds, microseconds = last_ms // 1000, last_ms % 1000 * 1000 + 999
            # Entries of the current millisecond are not old yet.
            while (await self._time()) <= (seconds, microseconds):
                pass
            while (await self._logs.trim(log, partition, Retention(max_age_ms=0))).more:
                pass
            await self._logs.set_retention(log, partition, KEEP_ALL)
            return (await self._logs.state(log, partition)).first

        return self._runner.run(trim())

    async def _time(self) -> tuple[int, int]:
        seconds, microseconds = await self._store.call("TIME")
        return int(seconds), int(microseconds)

    def held(self, log: str, partition: int = 0) -> dict[str, int]:
        """Return the holds on a partition, by reader."""
        reply = self.command("HGETALL", keys.holds(log, partition))
        assert isinstance(reply, list)
        words = [word.decode() for word in reply]
        return dict(zip(words[::2], map(int, words[1::2]), strict=True))

    def remove(self, log: str, *offsets: int, partition: int = 0) -> None:
        """Remove entries from the stream of a log, past its scripts: this makes a hole."""
        for offset in offsets:
            found = self.command("XRANGE", keys.entries(log, partition), offset, offset, "COUNT", 1)
            assert isinstance(found, list)
            assert self.command("XDEL", keys.entries(log, partition), found[0][0]) == 1

    def delete(self, log: str, partitions: int = 1) -> None:
        """Delete a log."""
        self._runner.run(self._logs.delete(log, partitions))
