"""Starting transactions over HTTP where there is no room: what is told, and what goes on."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from tests.helpers.http import Answer, async_ask
from tests.helpers.server import problem
from tests.helpers.waiting import eventually
from waystation import App
from waystation.config import Config
from waystation.store.client import Store
from waystation.testing.station import serving
from waystation.transactions import names


def app_that_waits(let: asyncio.Event) -> App:
    app = App()

    @app.step("shop/pay")
    async def pay(ctx: Any, given: Any) -> Any:
        await let.wait()
        return given

    app.pipeline("payment", ["shop/pay"])
    return app


async def keys_of_work(store: Store) -> set[bytes]:
    """All keys of cells, but for those that say whose turn it is to archive."""
    return {each for each in await store.call("KEYS", "{tx.*") if b"Lock" not in each}


async def test_a_start_in_a_full_store_is_507_and_leaves_nothing_behind(
    own_store_settings: Config,
) -> None:
    """F-20: what is under way goes on, and starts do once there is room."""
    let = asyncio.Event()
    async with serving(own_store_settings, app=app_that_waits(let)) as running:
        store = running.node.opened.store

        async def ask(method: str, path: str, content: Any = None) -> Answer:
            body = None if content is None else json.dumps(content).encode()
            return await async_ask(running.url, method, path, body)

        def order(external_id: str) -> dict[str, Any]:
            return {"type": "payment", "data": 5, "metadata": {"externalId": external_id}}

        early = await ask("POST", "/v1/transactions", order("early"))
        assert early.status == 201
        kept = early.json()["metadata"]["txId"]

        async def it_runs() -> bool:
            return bool((await ask("GET", f"/v1/why/{kept}")).json()["code"] == "running")

        await eventually(it_runs)
        before = await keys_of_work(store)
        assert names.state(kept).encode() in before
        await store.call("CONFIG", "SET", "maxmemory", "1")
        try:
            for content in (order("one"), {"transactions": [order("two"), order("three")]}):
                answer = await ask("POST", "/v1/transactions", content)
                assert problem(answer) == (507, "store.full")
                assert answer.json()["policy"] == "noeviction"
            assert await keys_of_work(store) <= before
            let.set()
            ended = (await ask("GET", f"/v1/transactions/{kept}?wait=15s")).json()
            assert (ended["metadata"]["status"], ended["data"]) == ("success", 5)
        finally:
            await store.call("CONFIG", "SET", "maxmemory", "0")

        for external_id in ("one", "two", "three"):
            path = f"/v1/transactions?external_id={external_id}"
            assert (await ask("GET", path)).json()["transactions"] == []
            answer = await ask("POST", "/v1/transactions", order(external_id))
            assert answer.status == 201, "not known from the start that was refused"
