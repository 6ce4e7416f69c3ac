"""Secrets by which the requests of a subscription are signed."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.subscriptions.subscription_bench import ENDPOINT, PROJECT, open_bench
from waystation.errors import (
    InvalidInputError,
)
from waystation.store.embedded.server import EmbeddedServer


async def test_requests_are_signed_by_a_secret_that_can_be_replaced(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with open_bench(store_server, tmp_path) as bench:
        await bench.topics.create(PROJECT, "orders")
        made = await bench.create()
        (first,) = await bench.subscriptions.secrets(made)
        assert first.text.startswith("whsec_")
        text = await bench.subscriptions.rotate_secret(PROJECT, "crm")
        newest, older = await bench.subscriptions.secrets(made)
        assert (newest.text, newest.until_ms, older.text) == (text, 0, first.text)
        assert older.until_ms > bench.clock.now_ms()
        # Nodes see by the version that there is something to read again.
        assert (await bench.subscriptions.get(PROJECT, "crm")).version == made.version + 1
        for key in await bench.keys("{sub.*"):
            assert b"whsec_" not in b"".join(await bench.store.call("HVALS", key))


async def test_two_rotations_at_once_are_both_in_force_for_a_while(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with (
        open_bench(store_server, tmp_path) as one,
        open_bench(store_server, tmp_path, empty=False) as other,
    ):
        await one.topics.create(PROJECT, "orders")
        made = await one.create()
        (first,) = await one.subscriptions.secrets(made)
        texts = await asyncio.gather(
            one.subscriptions.rotate_secret(PROJECT, "crm"),
            other.subscriptions.rotate_secret(PROJECT, "crm"),
        )
        found = await one.subscriptions.secrets(made)
        assert {each.text for each in found} == {*texts, first.text}
        assert [each.until_ms == 0 for each in found] == [True, False, False]


async def test_one_that_is_created_anew_has_a_secret_of_its_own(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with open_bench(store_server, tmp_path) as bench:
        await bench.topics.create(PROJECT, "orders")
        made = await bench.create()
        (first,) = await bench.subscriptions.secrets(made)
        await bench.subscriptions.delete(PROJECT, "crm")
        assert await bench.subscriptions.secrets(made) == ()
        (second,) = await bench.subscriptions.secrets(await bench.create())
        assert second.text != first.text


async def test_what_sends_no_requests_has_no_secret(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with open_bench(store_server, tmp_path) as bench:
        await bench.topics.create(PROJECT, "orders")
        made = await bench.create(endpoint="pipeline:refund")
        assert await bench.subscriptions.secrets(made) == ()
        with pytest.raises(InvalidInputError):
            await bench.subscriptions.rotate_secret(PROJECT, "crm")
        moved = await bench.subscriptions.change(
            PROJECT, "crm", made.options, version=made.version, endpoint=ENDPOINT
        )
        assert len(await bench.subscriptions.secrets(moved)) == 1
