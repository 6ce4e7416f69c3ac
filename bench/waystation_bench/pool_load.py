"""Load on a pool: envelopes through a door, messages beside many keys, keys that move.

Depth is measured in two pools of one store, one with few keys and one with many, in turn: a pair of
measurements is one beside the other in time, and the figure is the median of their ratios.
"""

from __future__ import annotations

import base64
import contextlib
import itertools
import os
import random
import statistics
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial
from typing import Any

import msgspec

from waystation.pools import Assignments, Mail, Members
from waystation.pools.held import Letter, Session
from waystation.pools.mail import BATCH_MAX
from waystation.pools.names import Place
from waystation.pools.terms import Terms
from waystation.runtime.clock import Clock
from waystation.store.client import Store
from waystation.store.keys import DEFAULT_PROJECT
from waystation_bench.bare import POOL_PATH
from waystation_bench.benchmark import BenchmarkError
from waystation_bench.http_connection import packed_request
from waystation_bench.http_load import CONNECTIONS, CONTENT, Script, run_scripts
from waystation_bench.report import Sample
from waystation_bench.target import Target, Window

#: The pool that the relay and the bare handler enqueue in.
POOL = Place(DEFAULT_PROJECT, "bench")
#: Recipients of the envelopes of one round.
RECIPIENTS = 1000
#: Keys of the pool with few; one worker has half of them, another the rest, with a message each.
FEW = 10
#: Turns of one measurement, so that it takes some milliseconds.
_TURNS = 20
_TERMS = Terms()
_REMEMBER_MS = 60_000
_LEASE_MS = 60_000
_BYTES_MAX = 4_000_000


def envelope(number: int) -> bytes:
    """An envelope for one of the recipients, of about 900 bytes as DIDComm v1 packs it."""
    header = {"kid": recipient(number), "sender": "s" * 107, "iv": "i" * 32}
    protected = {
        "enc": "xchacha20poly1305_ietf",
        "typ": "JWM/1.0",
        "alg": "Authcrypt",
        "recipients": [{"encrypted_key": "k" * 64, "header": header}],
    }
    fields = {
        "protected": base64.urlsafe_b64encode(msgspec.json.encode(protected)).decode(),
        "iv": "n" * 16,
        "ciphertext": "c" * 256,
        "tag": "t" * 24,
    }
    return msgspec.json.encode(fields)


def recipient(number: int) -> str:
    """The key of a recipient, as long as those of agents are."""
    return f"{number:044}"


async def relay(target: Target, seconds: float, *, bare: bool) -> Sample:
    """One operation = one envelope of its own request, durable in the pool."""
    store = Store(target.store_address)
    try:
        members = Members(store)
        await members.open(POOL, _TERMS)
        await members.register(POOL, _TERMS, "bench", nonce="bench")
    finally:
        await store.close()
    numbers = itertools.cycle(range(RECIPIENTS))
    requests = [_request(target, next(numbers), bare=bare) for _ in range(RECIPIENTS)]
    scripts = [_sending(requests, first) for first in range(CONNECTIONS)]
    return await run_scripts(target, scripts, seconds)


def _request(target: Target, number: int, *, bare: bool) -> bytes:
    path = f"{POOL_PATH}{recipient(number)}" if bare else "/"
    kind = "content-type: application/ssi-agent-wire\r\n"
    return packed_request("POST", path, target.key, envelope(number), headers=kind)


def _sending(requests: Sequence[bytes], first: int) -> Script:
    for number in itertools.count(first, CONNECTIONS):
        yield requests[number % len(requests)]


class _Pool:
    """A pool, and the scripts of two workers: `a` takes all that it gets, `b` nothing."""

    def __init__(self, store: Store, name: str) -> None:
        self._place = Place(DEFAULT_PROJECT, name)
        self._members, self._mail = Members(store), Mail(store)
        self._assignments = Assignments(store)
        self._ids = itertools.count()
        self._sessions: dict[str, Session] = {}
        self._rng = random.Random(1)
        #: Keys of `a`.
        self._keys: list[str] = []

    async def open(self, *uids: str) -> None:
        """With these workers."""
        await self._members.open(self._place, _TERMS)
        for uid in uids:
            self._sessions[uid] = await self._members.register(
                self._place, _TERMS, uid, nonce="bench"
            )

    async def fill(self, count: int) -> None:
        """So many keys, each with a message that its worker may take."""
        for first in range(0, count, BATCH_MAX):
            numbers = range(first, min(first + BATCH_MAX, count))
            await self._enqueue([recipient(number) for number in numbers])

    async def settle(self) -> None:
        """Worker `a` takes what it has, and so learns its keys."""
        while taken := await self._take():
            self._keys += taken

    async def turn(self) -> None:
        """Messages come for some keys of `a`, are taken, and acknowledged."""
        await self._enqueue(self._rng.sample(self._keys, FEW // 2))
        if len(await self._take()) != FEW // 2:
            raise BenchmarkError("A message that was enqueued cannot be taken.")

    async def beat(self) -> None:
        """Worker `b` is there, and busy with something else."""
        await self._members.beat(self._place, _TERMS, self._sessions["b"])

    async def move(self, uid: str) -> int:
        """Another, or others, get all keys of a worker; how many these are."""
        return await self._assignments.reassign(self._place, _TERMS, uid, asked=True)

    async def _enqueue(self, keys: list[str]) -> None:
        letters = [Letter(f"m{next(self._ids)}", key, CONTENT) for key in keys]
        await self._mail.enqueue(self._place, _TERMS, letters, remember_ms=_REMEMBER_MS)

    async def _take(self) -> list[str]:
        takings = await self._mail.take(
            self._place,
            _TERMS,
            self._sessions["a"],
            token=f"t{next(self._ids)}",
            most=BATCH_MAX,
            bytes_max=_BYTES_MAX,
            lease_ms=_LEASE_MS,
        )
        if takings.items:
            await self._mail.ack(self._place, _TERMS, self._sessions["a"], takings.items)
        return [each.key for each in takings.items]


async def depth(target: Target, amount: list[int]) -> Sample:
    """One operation = a message enqueued, taken and acknowledged, beside many keys or few."""
    many, pairs = amount
    times: list[tuple[float, float]] = []
    async with _opened(target) as store:
        pools = _Pool(store, "few"), _Pool(store, "many")
        for pool, count in zip(pools, (FEW, many), strict=True):
            await pool.open("a", "b")
            await pool.fill(count)
            await pool.settle()
        clock, window = Clock(), Window(target, os.getpid())
        for _ in range(pairs + 1):
            took = []
            for pool in pools:
                await pool.beat()
                begun = clock.monotonic()
                for _ in range(_TURNS):
                    await pool.turn()
                took.append((clock.monotonic() - begun) / _TURNS / (FEW // 2) * 1e6)
            times.append((took[0], took[1]))
        sample = window.close((pairs + 1) * 2 * _TURNS * (FEW // 2))
    # The first pair warms the interpreter up.
    figures = {
        "few_us": statistics.median(few for few, _ in times[1:]),
        "many_us": statistics.median(many for _, many in times[1:]),
        "many_vs_few": statistics.median(many / few for few, many in times[1:]),
    }
    return msgspec.structs.replace(sample, figures=figures)


async def reassign(target: Target, count: int) -> Sample:
    """One operation = a key with a message that moves from a worker to one of two others."""
    async with _opened(target) as store:
        pool = _Pool(store, "moving")
        await pool.open("dead")
        await pool.fill(count)
        await pool.open("a", "b")
        clock, window = Clock(), Window(target, os.getpid())
        begun = clock.monotonic()
        moved = await pool.move("dead")
        took = clock.monotonic() - begun
        sample = window.close(moved)
    if moved != count:
        raise BenchmarkError(f"{moved} of {count} keys have moved.")
    return msgspec.structs.replace(sample, figures={"all_s": took})


@contextlib.asynccontextmanager
async def _opened(target: Target) -> AsyncIterator[Store]:
    store = Store(target.store_address, call_seconds_max=60.0)
    try:
        yield store
    finally:
        await store.close()


JOBS: dict[str, Callable[[Target, Any], Awaitable[Sample]]] = {
    "pool_depth": depth,
    "pool_reassign": reassign,
    "relay_bare": partial(relay, bare=True),
    "relay_ours": partial(relay, bare=False),
}
