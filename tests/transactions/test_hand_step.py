"""A step that hands its input to the worker of a recipient key, and may wait for the answer."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.helpers.http import async_ask
from tests.pools.pool_bench import open_bench
from tests.transactions.helpers import TERMS
from tests.transactions.test_http_step import reaching
from tests.transactions.test_machine_crashes import ID, World, successes
from tests.transactions.test_reaching_out import TRACE, ended, run
from waystation import App, Context
from waystation.config import Config
from waystation.errors import PipelineInvalidError
from waystation.messages.envelope import Envelope, pack, unpack
from waystation.node import Node
from waystation.pools import PoolOptions
from waystation.pools.answers import ANSWER_TO
from waystation.pools.held import Letter, Session
from waystation.pools.names import Place
from waystation.runtime.ids import RandomIds
from waystation.store.client import Store
from waystation.store.embedded.server import EmbeddedServer
from waystation.store.scripts import script
from waystation.testing import CrashPoint, crash_points
from waystation.testing.station import Serving, serving
from waystation.transactions.callbacks import Callbacks, CallbackUrls, parse_ticket
from waystation.transactions.order import Order
from waystation.transactions.outcomes import Failure, Pause, Success
from waystation.transactions.pipeline import define
from waystation.transactions.signals import Signals
from waystation.transactions.states import Status

PLACE = Place("default", "agents")
CLOSE = script("waystation.pools", "close")


async def waiting(store: Store, key: str) -> list[Envelope]:
    """What waits for a key, in order."""
    found = await store.call("LRANGE", PLACE.key(f"m:{key}"), 0, -1)
    return [unpack(each.split(b" ", 2)[2], project="default") for each in found]


@asynccontextmanager
async def handing(settings: Config, **options: Any) -> AsyncIterator[Node]:
    """A node with a pool `agents`."""
    async with serving(settings) as station:
        await station.node.pools.pools.create("default", "agents", PoolOptions(**options))
        yield station.node


# -- Without an answer -----------------------------------------------------------------------


async def test_what_a_step_hands_over_is_there_once_however_often_it_is_called(
    settings: Config,
) -> None:
    """What a death between the pool and the commit leads to."""
    given = b'{"customer": {"id": 7}, "order": {"total": 1.0}}'
    async with handing(settings) as node:
        for _ in range(2):
            outcome = await run(
                node, "util/hand", given, pool="agents", key="customer.id", data="order"
            )
            assert outcome == Success(given)
        (message,) = await waiting(node.opened.store, "7")
        assert message.data == b'{"total": 1.0}'
        assert dict(message.headers) == {"content-type": "application/json"}
        assert (message.group, message.traceparent) == ("7", TRACE)
        assert message.cause == "tx-0000" + "0" * 36


async def test_without_a_key_it_is_the_transaction_and_without_a_field_all_of_the_input(
    settings: Config,
) -> None:
    async with handing(settings) as node:
        assert await run(node, "util/hand", b"[1]", pool="agents") == Success(b"[1]")
        (message,) = await waiting(node.opened.store, "tx-0000" + "0" * 36)
        assert message.data == b"[1]"


@pytest.mark.parametrize(
    ("given", "options", "told"),
    [
        (b"{}", {"key": "who"}, "Field who of the input is to be the recipient key"),
        (b'{"who": true}', {"key": "who"}, "Field who of the input is to be the recipient key"),
        (b'{"who": ""}', {"key": "who"}, "Field who of the input is to be the recipient key"),
        (b'{"who": "a\\u0000"}', {"key": "who"}, "A recipient key has 1 to 4096 bytes"),
        (b"{}", {"data": "order"}, "Field order is to be handed over, and is missing."),
        (b"{}", {"pool": "nowhere"}, "There is no pool nowhere."),
    ],
)
async def test_what_can_never_be_handed_over_fails(
    settings: Config, given: bytes, options: dict[str, Any], told: str
) -> None:
    async with handing(settings) as node:
        outcome = await run(node, "util/hand", given, **{"pool": "agents", **options})
        assert isinstance(outcome, Failure)
        assert outcome.note.startswith(told)
        assert not await node.opened.store.call("KEYS", PLACE.key("m:*"))


async def test_a_pool_that_is_full_or_closes_is_asked_again_later(settings: Config) -> None:
    async with handing(settings, messages_max=1) as node:
        pools = node.pools.pools
        await pools.enqueue("default", "agents", [Letter("m", "k", b"")])
        full = await run(node, "util/hand", b"{}", pool="agents")
        await node.opened.store.run(CLOSE, [PLACE.head], [1, ""])
        closed = await run(node, "util/hand", b"{}", pool="agents")
        for outcome, word in ((full, "no room"), (closed, "being deleted")):
            assert isinstance(outcome, Pause)
            assert word in outcome.note
            assert 0 < (outcome.delay_ms or 0) <= 1200
            assert not outcome.switch


@pytest.mark.parametrize(
    "options",
    [
        *({}, {"pool": "Not a name"}, {"pool": "a", "key": ""}, {"pool": "a", "key": ".x"}),
        *({"pool": "a", "wait": "soon"}, {"pool": "a", "more": 1}),
    ],
)
def test_bad_options_are_refused_at_definition(options: dict[str, Any]) -> None:
    with pytest.raises(PipelineInvalidError, match="Step 1 of pipeline p"):
        define("p", [("util/hand", options)])


# -- With an answer --------------------------------------------------------------------------


async def take(node: Node) -> tuple[Session, Envelope, Any]:
    """A worker comes, and takes the one message that there is."""
    pools, token = node.pools.pools, RandomIds().token(8)
    pool = await pools.get("default", "agents")
    terms = pools.terms(pool)
    session = await pools.members.register(pool.place, terms, "w", nonce="n")
    limits = {"most": 1, "bytes_max": 1000, "lease_ms": 60_000}
    async with asyncio.timeout(10):
        while True:
            takings = await pools.mail.take(pool.place, terms, session, token=token, **limits)
            if takings.items:
                (taken,) = takings.items
                return session, unpack(taken.packed, project="default"), taken
            await asyncio.sleep(0.01)


def asking(**options: Any) -> App:
    """An app whose one step hands its input over, and waits."""
    app = App()
    step = ("util/hand", {"pool": "agents", "key": "agent", "wait": True, **options})
    app.pipeline("ask", [step])
    return app


async def started(station: Serving, **options: Any) -> str:
    """A transaction of that app."""
    node = station.node
    await node.pools.pools.create("default", "agents", PoolOptions(**options))
    order = Order(type="ask", data=b'{"agent": "did:key:z6Mk"}')
    (receipt,) = await node.engine.starter.start_many("default", [order])
    assert not isinstance(receipt, Exception)
    return str(receipt.id)


async def answer(station: Serving, session: Session, to: str, **body: Any) -> int:
    """The worker's answer, over HTTP; the status."""
    told = {"session": session.number, "answer_to": to, **body}
    path = f"/v1/pools/agents/workers/{session.uid}/answer"
    return (await async_ask(station.url, "POST", path, msgspec.json.encode(told))).status


async def test_the_answer_of_a_worker_is_the_output_and_is_given_once(settings: Config) -> None:
    async with serving(settings, app=asking()) as station:
        transaction_id = await started(station)
        session, message, _ = await take(station.node)
        assert message.group == "did:key:z6Mk"
        to = dict(message.headers)[ANSWER_TO]
        another = to[:-1] + ("1" if to.endswith("0") else "0")
        assert await answer(station, session, another, data={"n": 1}) == 404
        assert await answer(station, session, to, base64="/w==") == 422
        assert await answer(station, session, to, data={"n": 17}) == 200
        told = await ended(station, transaction_id)
        assert (told["metadata"]["status"], told["data"]) == ("success", {"n": 17})
        assert await answer(station, session, to, data={"n": 18}) == 409


async def test_nobody_who_answers_in_time_is_a_failure(settings: Config) -> None:
    async with serving(settings, app=asking(wait="0.2s")) as station:
        transaction_id = await started(station)
        told = await ended(station, transaction_id)
        assert told["metadata"]["status"] == "failed"
        assert "No worker answered in time." in str(told)


@pytest.mark.parametrize("agents_answer", [False, True])
async def test_hand_step_waiting_for_agents_of_mirrored_pool_fails(
    settings: Config, agents_answer: bool
) -> None:
    async with serving(settings, app=asking(wait="2d")) as station:
        transaction_id = await started(station, mirror=True, agents_answer=agents_answer)
        told = await ended(station, transaction_id)
        assert told["metadata"]["status"] == "failed"
        assert "cannot wait for an answer" in str(told)


class Handing(World):
    """A world with a pool, whose worker answers later."""

    server: EmbeddedServer

    async def prepare(self, store: Store) -> None:
        for file in (self.folder / "pools").glob("*"):
            file.unlink()
        (self.folder / "pools").mkdir(exist_ok=True)
        await super().prepare(store)
        # Not a call of the worker's, so it has a client of its own.
        async with open_bench(self.server, self.folder / "pools", empty=False) as bench:
            await bench.create()

    async def drive(self, store: Store) -> None:
        pools = open_bench(self.server, self.folder / "pools", empty=False, store=store)
        async with reaching() as services, pools as bench:

            async def hand(
                project: str, pool: str, key: str, message: Envelope, answer_to: str
            ) -> None:
                headers = (*message.headers, (ANSWER_TO, answer_to))
                message = msgspec.structs.replace(message, headers=headers)
                letter = Letter(message.id, key, pack(message))
                await bench.pools.enqueue(project, pool, [letter])

            self.services = dataclasses.replace(services, hand=hand)
            await super().drive(store)

    async def call_back(self, signals: Signals) -> None:
        (message,) = await waiting(signals._store, "k")
        ticket = parse_ticket(dict(message.headers)[ANSWER_TO])
        assert ticket is not None
        urls = CallbackUrls(b"s" * 32)
        callbacks = Callbacks(signals, urls, terms=TERMS, identity=RandomIds())
        await callbacks.use(*ticket, b'"answer"')


@pytest.mark.slow
def test_a_worker_may_die_at_every_call_of_a_step_that_hands_over_and_waits(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    """Between the pool and the record that it was handed over, too: the message is there once."""
    app = App()

    @app.step("last")
    async def last(ctx: Context, answer: str) -> str:
        return answer.upper()

    app.pipeline("p", [("util/hand", {"pool": "agents", "key": "to", "wait": "1h"}), "last"])
    world = Handing(tmp_path, app, "p", {"to": "k"})
    world.server = store_server

    async def after(store: Store, point: CrashPoint) -> None:
        status, output, facts = await world.finish(store)
        assert (status, output) == (Status.SUCCESS, "ANSWER")
        assert len(await waiting(store, "k")) == 1
        assert successes(facts) == {(ID, "1"): 1, (ID, "2"): 1}

    points = crash_points(store_server.address, world.drive, after, prepare=world.prepare)
    assert len(points) > 30
