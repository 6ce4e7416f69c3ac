"""A relay on the real store, with real doors, and a worker of its pool."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import aiohttp

from waystation.catalogue import SqliteCatalogue
from waystation.config import PoolConfig
from waystation.messages.envelope import Envelope, unpack
from waystation.pools import Mail, Pool, PoolOptions, Pools
from waystation.pools.answers import ANSWER_TO, Answers
from waystation.pools.held import Session, Taken
from waystation.relay.door import HttpDoor
from waystation.relay.http_app import HttpApp
from waystation.relay.inbox import Inbox
from waystation.relay.relay import Relay
from waystation.relay.server import DoorPlan, DoorServer
from waystation.relay.socket_door import SocketDoor
from waystation.runtime.clock import Clock
from waystation.runtime.ids import RandomIds
from waystation.store.address import Address
from waystation.store.client import Store
from waystation.store.pubsub import PubSub

LIMITS = {"most": 100, "bytes_max": 4_000_000, "lease_ms": 60_000}


def encoded(value: object) -> str:
    """As a protected header is written."""
    text = value if isinstance(value, bytes) else json.dumps(value).encode()
    return base64.urlsafe_b64encode(text).decode().rstrip("=")


def v1(*kids: str, **more: Any) -> bytes:
    """An envelope as DIDComm v1 packs it."""
    recipients = [{"encrypted_key": "x", "header": {"kid": kid}} for kid in kids]
    protected = encoded({"enc": "xchacha20", "typ": "JWM/1.0", "recipients": recipients})
    return json.dumps({"protected": protected, "iv": "i", "ciphertext": "c", **more}).encode()


def v2(*kids: str, **more: Any) -> bytes:
    """An envelope of DIDComm v2."""
    recipients = [{"encrypted_key": "x", "header": {"kid": kid}} for kid in kids]
    protected = encoded({"typ": "application/didcomm-encrypted+json", "alg": "ECDH-1PU+A256KW"})
    return json.dumps({"protected": protected, "recipients": recipients, **more}).encode()


@dataclass
class RelayWorld:
    """Doors, and what came of what was said to them."""

    store: Store
    wakeups: PubSub
    pool: Pool
    answers: Answers
    session: Session
    http: str
    ws: str
    client: aiohttp.ClientSession
    calls: int = 0

    @property
    def terms(self) -> Any:
        return self.pool.terms(PoolConfig())

    async def take(self) -> list[tuple[str, Envelope]]:
        """The worker takes what it can, and settles it: keys and messages."""
        self.calls += 1
        mail, found = Mail(self.store), list[Taken]()
        place = self.pool.place
        taken = await mail.take(place, self.terms, self.session, token=f"t-{self.calls}", **LIMITS)
        while taken.items:
            found += taken.items
            await mail.ack(place, self.terms, self.session, taken.items)
            self.calls += 1
            token = f"t-{self.calls}"
            taken = await mail.take(place, self.terms, self.session, token=token, **LIMITS)
        return [(each.key, unpack(each.packed, project="default")) for each in found]

    async def take_one(self) -> tuple[str, Envelope]:
        """Waits for a message."""
        while not (found := await self.take()):
            pass
        (one,) = found
        return one

    async def respond(self, data: bytes, content_type: str = "application/ssi-agent-wire") -> None:
        """The worker answers the next message that comes."""
        _, envelope = await self.take_one()
        answer_to = dict(envelope.headers)[ANSWER_TO]
        await self.answers.put(self.pool.place, answer_to, content_type, data)


@asynccontextmanager
async def open_relay(
    address: Address,
    *,
    options: PoolOptions | None = None,
    answer_seconds: float = 15.0,
    idle_seconds: float = 15.0,
    body_bytes_max: int = 1_048_576,
    fresh: bool = True,
    call_seconds_max: float = 5.0,
) -> AsyncIterator[RelayWorld]:
    """A relay with an HTTP and a WebSocket door, and one worker."""
    store, wakeups = Store(address, call_seconds_max=call_seconds_max), PubSub(address)
    await wakeups.start()
    if fresh:
        await store.call("FLUSHALL")
    folder = TemporaryDirectory()
    catalogue = SqliteCatalogue(Path(folder.name) / "catalogue.db")
    await catalogue.open()
    pools = Pools(catalogue, store, wakeups, clock=Clock(), settings=PoolConfig())
    if fresh:
        pool = await pools.create("default", "agents", options)
    else:
        pool = await pools.get("default", "agents")
    terms, answers = pools.terms(pool), pools.answers
    mirrored = pool.options.mirror
    session = (
        Session("", 0)
        if mirrored
        else await pools.members.register(pool.place, terms, "worker", nonce="n")
    )
    relay = Relay(
        Inbox(pools, pool.place),
        answers,
        identity=RandomIds(),
        answer_seconds=answer_seconds,
    )
    http = HttpApp("http", HttpDoor(relay).handle, body_bytes_max=body_bytes_max)
    ws = SocketDoor(relay, idle_seconds=idle_seconds, body_bytes_max=body_bytes_max)
    plans = [DoorPlan(http, "127.0.0.1", 0), DoorPlan(ws, "127.0.0.1", 0)]
    server = DoorServer(plans, body_bytes_max=body_bytes_max)
    ports = await server.start()
    client = aiohttp.ClientSession()
    try:
        yield RelayWorld(
            store,
            wakeups,
            pool,
            answers,
            session,
            f"http://127.0.0.1:{ports[0]}/",
            f"ws://127.0.0.1:{ports[1]}/",
            client,
        )
    finally:
        await client.close()
        relay.end_waits()
        await server.stop()
        await relay.close()
        await wakeups.stop()
        await store.close()
        await catalogue.close()
        folder.cleanup()
