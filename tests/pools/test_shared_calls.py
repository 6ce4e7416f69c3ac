"""Messages that come one by one share calls to the store, and nothing else."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.pools.pool_bench import NAME, PROJECT, PoolBench, open_bench
from waystation.errors import InvalidInputError, PoolClosedError, PoolNotFoundError
from waystation.pools.held import Enqueued, Letter
from waystation.store.embedded.server import EmbeddedServer

COUNT, KEYS = 640, 20
#: Too large to share a call.
LARGE = b"x" * 20_000


def send(
    bench: PoolBench, number: int, *, id_: str = "", body: bytes = b"{}"
) -> asyncio.Task[Enqueued]:
    """One message by a caller of its own."""
    letter = Letter(id_ or f"m{number}", f"k{number % KEYS}", body)

    async def enqueue() -> Enqueued:
        (enqueued,) = await bench.pools.enqueue(PROJECT, NAME, [letter])
        return enqueued

    return asyncio.ensure_future(enqueue())


async def scripts(bench: PoolBench) -> int:
    """Calls of scripts so far."""
    found = (await bench.store.call("INFO", "commandstats")).decode()
    lines = [line for line in found.splitlines() if line.startswith("cmdstat_evalsha:")]
    return sum(int(line.split("calls=")[1].split(",")[0]) for line in lines)


async def test_many_callers_share_few_calls_and_each_key_keeps_its_order(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with open_bench(store_server, tmp_path) as bench:
        pool = await bench.create()
        await bench.register(pool, "a")
        before = await scripts(bench)

        found = await asyncio.gather(*(send(bench, number) for number in range(COUNT)))

        assert await scripts(bench) - before <= COUNT / 32 + 1
        assert {each.outcome for each in found} == {"added"}
        numbers = [each.number for each in found]
        for key in range(KEYS):
            assert numbers[key::KEYS] == sorted(numbers[key::KEYS])
        assert len(set(numbers)) == COUNT


async def test_each_hears_what_became_of_its_own_message(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with open_bench(store_server, tmp_path) as bench:
        await bench.create()
        first = await send(bench, 1)
        found = await asyncio.gather(
            send(bench, 1),
            send(bench, 2, id_="\n"),
            send(bench, 3),
            send(bench, 4, body=LARGE),
            return_exceptions=True,
        )
        again, bad, good, large = found
        assert isinstance(again, Enqueued)
        assert (again.outcome, again.number) == ("duplicate", first.number)
        assert isinstance(bad, InvalidInputError)
        for each in (good, large):
            assert isinstance(each, Enqueued)
            assert each.outcome == "added"


async def test_who_gives_up_takes_nobody_along_and_a_pool_that_is_gone_says_so_to_all(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    async with open_bench(store_server, tmp_path) as bench:
        await bench.create()
        tasks = [send(bench, number) for number in range(10)]
        await asyncio.sleep(0)
        tasks[3].cancel()
        found = await asyncio.gather(*tasks, return_exceptions=True)
        assert isinstance(found.pop(3), asyncio.CancelledError)
        assert {each.outcome for each in found if isinstance(each, Enqueued)} == {"added"}
        assert len(found) == 9

        await bench.pools.delete(PROJECT, NAME)
        refused = await asyncio.gather(
            *(send(bench, number) for number in range(20, 30)), return_exceptions=True
        )
        assert all(isinstance(each, PoolNotFoundError | PoolClosedError) for each in refused)
    assert refused
