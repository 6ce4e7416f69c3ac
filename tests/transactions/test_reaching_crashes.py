"""A worker dies at every call of steps that reach out, or undo; another ends what it began."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.transactions.helpers import TERMS
from tests.transactions.test_http_step import reaching
from tests.transactions.test_machine_crashes import ID, World, successes
from waystation import App, Context, Fail
from waystation.delivery.request import Outcome, Outgoing
from waystation.runtime.ids import RandomIds
from waystation.store.client import Store
from waystation.store.embedded.server import EmbeddedServer
from waystation.testing import CrashPoint, crash_points
from waystation.testing.endpoint import FakeEndpoint
from waystation.transactions.callbacks import Callbacks, CallbackUrls
from waystation.transactions.signals import Signals
from waystation.transactions.states import Status

SECRET = b"s" * 32


class Asking(World):
    """A world with a server that answers 202, and calls back later."""

    async def drive(self, store: Store) -> None:
        async with FakeEndpoint(plan=[202]) as endpoint, reaching() as services:

            async def send(request: Outgoing) -> Outcome:
                # The definition outlives this server: its port is another one every time.
                outcome = await services.send(msgspec.structs.replace(request, url=endpoint.url))
                self.effect(endpoint.received[-1].headers["waystation-callback"])
                return outcome

            self.services = dataclasses.replace(services, send=send)
            await super().drive(store)

    async def call_back(self, signals: Signals) -> None:
        url = self.effects.read_text().splitlines()[0]
        transaction_id, place, token = url.split("/")[-3:]
        urls = CallbackUrls(SECRET)
        callbacks = Callbacks(signals, urls, terms=TERMS, identity=RandomIds())
        await callbacks.use(transaction_id, place, token, b'"answer"')


@pytest.mark.slow
def test_a_worker_may_die_at_every_call_of_a_step_that_is_called_back(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    """Between the 202 and its record, too: whoever asks again asks with the same token."""
    app = App()

    @app.step("last")
    async def last(ctx: Context, answer: str) -> str:
        return answer.upper()

    options = {"url": "http://127.0.0.1:1/", "callback": "1h"}
    app.pipeline("p", [("util/http", options), "last"])
    world = Asking(tmp_path, app, "p", None)

    async def after(store: Store, point: CrashPoint) -> None:
        status, output, facts = await world.finish(store)
        assert (status, output) == (Status.SUCCESS, "ANSWER")
        asked = world.effects.read_text().splitlines()
        assert len(set(asked)) == 1
        assert len(asked) <= 2
        assert successes(facts) == {(ID, "1"): 1, (ID, "2"): 1}

    points = crash_points(store_server.address, world.drive, after, prepare=world.prepare)
    assert len(points) > 30


@pytest.mark.slow
def test_a_worker_may_die_at_every_call_of_a_compensation(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    app = App()

    @app.step("charge")
    async def charge(ctx: Context) -> Any:
        return await ctx.once("charge", lambda: world.effect(f"charge {ctx.idempotency_key}"))

    @app.step("fail")
    async def fail(ctx: Context) -> Any:
        return Fail("no stock", output={"code": 7})

    @app.step("refund")
    async def refund(ctx: Context, told: dict[str, Any]) -> None:
        assert (told["status"], told["output"]) == ("failed", {"code": 7})
        await ctx.once("refund", lambda: world.effect(f"refund {ctx.idempotency_key}"))

    app.pipeline("refund", ["refund", "refund"])
    app.pipeline("inner", ["charge", "fail"], on_failure="refund")
    app.pipeline("p", ["charge", ("util/child", {"pipeline": "inner"})], on_failure="refund")
    world = World(tmp_path, app, "p", None)

    async def after(store: Store, point: CrashPoint) -> None:
        status, output, facts = await world.finish(store)
        assert (status, output) == (Status.FAILED, {"code": 7})
        effects = world.effects.read_text().splitlines()
        assert len({each for each in effects if each.startswith("charge")}) == 2
        assert len({each for each in effects if each.startswith("refund")}) == 4
        # Once more only where it died between the effect and the record.
        assert len(effects) <= 7
        places = ["1", "2.1", "2.2~.1", "2.2~.2", "2~.1", "2~.2"]
        assert successes(facts) == {(ID, place): 1 for place in places}
        assert [each.kind for each in facts].count("finished") == 1

    points = crash_points(store_server.address, world.drive, after, prepare=world.prepare)
    assert len(points) > 60
