"""A pool on the real store, opened for one test, with its slot in plain view.

`check` is what always holds in it, whatever happened; it also remembers who had a key in which
epoch, so that two owners in one epoch are seen wherever they occur.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec

from tests.helpers.records import record_entries, register_reader
from tests.pools.replay import Replay
from waystation.logs.records import RecordLogs, log_key
from waystation.logs.streams import StreamLogs
from waystation.pools import Assignments, Mail, Members
from waystation.pools.held import Acked, Enqueued, Letter, Nack, Nacked, Session, Swept, Taken
from waystation.pools.names import NOBODY, Place
from waystation.pools.states import Verdict, WorkerKind
from waystation.pools.terms import Terms
from waystation.runtime.clock import Clock
from waystation.store.client import Store
from waystation.store.embedded.server import EmbeddedServer
from waystation.store.pubsub import PubSub
from waystation.store.time_machine import TimeMachine
from waystation.types.common import Record

PLACE = Place("default", "agents")
LEASE_MS = 30_000
PENDING = 2**20


@dataclass
class PoolSlot:
    """The scripts of a pool, and what they leave."""

    store: Store
    machine: TimeMachine
    terms: Terms = field(default_factory=Terms)
    place: Place = PLACE
    calls: int = 0
    lease_ms: int = LEASE_MS
    sessions: dict[str, Session] = field(default_factory=dict)
    #: Who had a key in which epoch, ever.
    owners: dict[int, tuple[str, str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.members, self.mail = Members(self.store), Mail(self.store)
        self.assignments = Assignments(self.store)

    def use(self, **changes: Any) -> None:
        """Goes on with other terms, say another policy."""
        self.terms = msgspec.structs.replace(self.terms, **changes)

    def fresh(self, word: str = "t") -> str:
        """A name that was not used yet."""
        self.calls += 1
        return f"{word}-{self.calls}"

    # -- Verbs -------------------------------------------------------------------------------

    async def register(self, *uids: str, nonce: str = "", agent: bool = False) -> None:
        """Registers workers, each as a process of its own."""
        kind = WorkerKind.AGENT if agent else WorkerKind.NATIVE
        for uid in uids:
            given = nonce or self.fresh("nonce")
            self.sessions[uid] = await self.members.register(
                self.place, self.terms, uid, nonce=given, kind=kind
            )

    async def beat(self, *uids: str) -> None:
        """Workers say that they are there."""
        for uid in uids:
            await self.members.beat(self.place, self.terms, self.sessions[uid])

    async def send(self, key: str, data: str = "", *, message_id: str = "") -> Enqueued:
        """Enqueues one message; the rest of the keys of a stale worker move too, as in `Pools`."""
        letter = Letter(message_id or self.fresh("m"), key, data.encode())
        batch = await self.mail.enqueue(self.place, self.terms, [letter], remember_ms=60_000)
        for uid in batch.unfinished:
            await self.assignments.reassign(self.place, self.terms, uid)
        (item,) = batch.items
        return item

    async def send_all(self, *keys: str) -> list[Enqueued]:
        """Enqueues one message for each key, 100 a call."""
        items = []
        for i in range(0, len(keys), 100):
            letters = [Letter(self.fresh("m"), key, key.encode()) for key in keys[i : i + 100]]
            batch = await self.mail.enqueue(self.place, self.terms, letters, remember_ms=60_000)
            items += batch.items
        return items

    async def take(self, uid: str, *, most: int = 100, token: str = "") -> list[Taken]:
        """What a worker is given."""
        takings = await self.mail.take(
            self.place,
            self.terms,
            self.sessions[uid],
            token=token or self.fresh("t"),
            most=most,
            bytes_max=10**7,
            lease_ms=self.lease_ms,
        )
        return takings.items

    async def take_one(self, uid: str) -> Taken:
        """The one message that a worker is given."""
        (taken,) = await self.take(uid)
        return taken

    async def ack(self, uid: str, *items: Taken, next_lease_ms: int = 0) -> list[Acked]:
        """Settles messages as a worker."""
        return await self.mail.ack(
            self.place, self.terms, self.sessions[uid], items, next_lease_ms=next_lease_ms
        )

    async def outcome(self, uid: str, taken: Taken) -> str:
        """What comes of an acknowledgement."""
        ((acked),) = await self.ack(uid, taken)
        return acked.outcome

    async def nack(self, uid: str, taken: Taken, verdict: Verdict = "again", **more: Any) -> Nacked:
        """Gives a message back as a worker."""
        item = Nack(taken=taken, verdict=verdict, **more)
        (outcome,) = await self.mail.nack(self.place, self.terms, self.sessions[uid], [item])
        return outcome

    async def sweep(self, **more: Any) -> Swept:
        """Looks after the pool once."""
        given = {"forget_ms": 3_600_000, "retention_ms": None, **more}
        return await self.assignments.sweep(self.place, self.terms, **given)

    async def drain(self, uid: str) -> int:
        """A worker drains; how many messages it still has."""
        return await self.members.drain(self.place, self.terms, self.sessions[uid])

    async def leave(self, uid: str) -> None:
        """A worker goes."""
        await self.members.leave(self.place, self.terms, self.sessions[uid])

    async def later(self, seconds: float) -> None:
        """Time passes."""
        await self.machine.advance(seconds)

    async def owner(self, key: str) -> str:
        """Who has a key."""
        look = await self.assignments.look_at(self.place, self.terms, key)
        return "" if look is None else look.owner

    # -- What is in the store ----------------------------------------------------------------

    async def hash(self, kind: str) -> dict[str, str]:
        """A hash."""
        pairs = await self.store.call("HGETALL", self.place.key(kind))
        texts = [each.decode(errors="backslashreplace") for each in pairs]
        return dict(zip(texts[::2], texts[1::2], strict=True))

    async def scores(self, kind: str) -> dict[str, int]:
        """A sorted set."""
        pairs = await self.store.call("ZRANGE", self.place.key(kind), 0, -1, "WITHSCORES")
        return {pairs[i].decode(): int(pairs[i + 1]) for i in range(0, len(pairs), 2)}

    async def queue(self, key: str) -> list[tuple[int, str]]:
        """The messages of a key: number and content."""
        found = await self.store.call("LRANGE", self.place.key(f"m:{key}"), 0, -1)
        words = (each.decode().split(" ", 2) for each in found)
        return [(int(number), data) for number, _, data in words]

    async def slot(self) -> dict[str, Any]:
        """Every key of the pool with all that it holds."""
        found: dict[str, Any] = {}
        for name in await self.store.call("KEYS", self.place.tag + "*"):
            kind = name.decode().removeprefix(self.place.tag)
            match (await self.store.call("TYPE", name)).decode():
                case "hash":
                    found[kind] = await self.hash(kind)
                case "zset":
                    found[kind] = await self.scores(kind)
                case "list":
                    found[kind] = await self.store.call("LRANGE", name, 0, -1)
                case "string":
                    found[kind] = await self.store.call("GET", name)
        return found

    async def check(self) -> dict[str, Any]:
        """What always holds; returns the slot."""
        slot = await self.slot()
        entries = {key: line.split(" ") for key, line in slot.get("keys", {}).items()}
        workers = {uid: line.split(" ") for uid, line in slot.get("workers", {}).items()}
        lists = {
            kind.removeprefix("m:"): each for kind, each in slot.items() if kind.startswith("m:")
        }
        assert lists.keys() <= entries.keys(), "a list without its key"
        self._check_lists(slot, entries)
        self._check_load(slot, entries, lists)
        for key, words in entries.items():
            owner, epoch, token = words[:3]
            assert owner == NOBODY or owner in workers, f"{key} belongs to one who is not there"
            if int(epoch):
                known = self.owners.setdefault(int(epoch), (key, owner))
                assert known == (key, owner), f"two owners in epoch {epoch}"
            ready = key in slot.get(f"ready:{owner}", ())
            taken = key in slot.get(f"taken:{owner}", ())
            assert ready + taken == (key in lists), f"{key} is in {ready + taken} places"
            assert taken == (token != "-"), f"{key}: a token without a lease, or the reverse"
            numbers = [int(each.split(b" ")[0]) for each in lists.get(key, ())]
            assert numbers == sorted(set(numbers)), f"{key} is out of order"
        live = set(slot.get("live", ()))
        assert all(workers[uid][0] == "live" for uid in live)
        if self.terms.record.startswith("f "):
            await self._check_records(entries, lists, slot)
        points = Counter(each.split(" ")[1] for each in slot.get("ring", ()))
        assert points == dict.fromkeys(live, 64)
        return slot

    async def _check_records(
        self, entries: dict[str, list[str]], lists: dict[str, list[bytes]], slot: dict[str, Any]
    ) -> None:
        """Check that the recorded events lead to the present state."""
        replay = Replay().apply(await record_entries(self.store, "pools"))
        queues = {key: numbers for key, numbers in replay.queues.items() if numbers}
        assert queues == {
            key: [int(each.split(b" ")[0]) for each in queue] for key, queue in lists.items()
        }
        assert replay.dead == {int(number) for number in slot.get("dead", ())}
        assert replay.taken.keys() == {key for key, words in entries.items() if words[2] != "-"}
        owners = {key: replay.owners.get(key, NOBODY) for key in entries}
        assert owners == {key: words[0] for key, words in entries.items()}

    def _check_lists(self, slot: dict[str, Any], entries: dict[str, list[str]]) -> None:
        listed = {
            (key, kind.removeprefix("keys:"))
            for kind, keys in slot.items()
            if kind.startswith("keys:")
            for key in keys
        }
        assert listed == {(key, words[0]) for key, words in entries.items()}, (
            "a key is in its owner's list, and in no other"
        )
        for kind, held in slot.items():
            set_, _, owner = kind.partition(":")
            if set_ in ("ready", "taken"):
                assert all(entries[key][0] == owner for key in held), kind

    def _check_load(
        self, slot: dict[str, Any], entries: dict[str, list[str]], lists: dict[str, list[bytes]]
    ) -> None:
        load: Counter[str] = Counter()
        for key, words in entries.items():
            load[words[0]] += 1 + PENDING * len(lists.get(key, ()))
        counted = {uid: load for uid, load in slot.get("load", {}).items() if load}
        assert counted == dict(load)
        bodies = [each.split(b" ", 2)[2] for queue in lists.values() for each in queue]
        head = slot["head"]
        wanted = (len(bodies), sum(map(len, bodies)))
        assert (int(head.get("messages", 0)), int(head.get("bytes", 0))) == wanted


@asynccontextmanager
async def open_pool_slot(
    server: EmbeddedServer,
    *,
    store: Store | None = None,
    record: Record | None = None,
    **terms: Any,
) -> AsyncIterator[PoolSlot]:
    """Open a pool without workers on an empty store. Only the test moves its time.

    With `record`, history is registered, and the scripts record.
    """
    store = store or Store(server.address, test_mode=True)
    wakeups, clock = PubSub(server.address), Clock()
    machine = TimeMachine(store, wakeups, clock)
    slot = PoolSlot(store, machine, Terms(**terms))
    try:
        await store.call("FLUSHALL")
        await wakeups.start()
        await machine.start()
        if record is not None:
            records = RecordLogs(store, StreamLogs(store), clock=clock)
            await register_reader(store)
            await records.read_registration()
            log = records.log_of("pools", PLACE.tag)
            await records.create_log(log)
            slot.use(record=f"{records.policy(record)} {log_key(log)}")
        assert await slot.members.open(PLACE, slot.terms)
        yield slot
    finally:
        await machine.stop()
        await wakeups.stop()
        await store.close()
