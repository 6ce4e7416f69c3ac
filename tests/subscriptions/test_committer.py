"""The committer: one call at a time, many items a call, again until there is a reply."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from tests.subscriptions.at_work import AtWork, at_work
from tests.subscriptions.shard_slot import record_for
from waystation.errors import OutcomeUnknownError
from waystation.store.embedded.server import EmbeddedServer
from waystation.subscriptions.commits import Commits
from waystation.subscriptions.committer import Committer
from waystation.subscriptions.held import Committed, Settled, Settlement
from waystation.subscriptions.names import Place
from waystation.subscriptions.states import GroupState, Verdict
from waystation.subscriptions.tenure import Tenure
from waystation.subscriptions.terms import Terms


class Watched(Commits):
    """Commits, with what is under way in plain view; replies can be lost."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.calls: list[int] = []
        self.numbers: list[int] = []
        self.under_way = 0
        self.most = 0
        self.lose = 0

    async def commit(
        self, place: Place, terms: Terms, items: Sequence[Settlement], *, call: int
    ) -> Committed:
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        self.calls.append(len(items))
        self.numbers.append(call)
        try:
            committed = await super().commit(place, terms, items, call=call)
        finally:
            self.under_way -= 1
        if self.lose:
            self.lose -= 1
            raise OutcomeUnknownError("The connection to the store died before its reply.")
        return committed


def item(offset: int, verdict: Verdict = Verdict.DONE, *, size: int = 0) -> Settlement:
    record = b"" if verdict is Verdict.DONE else record_for("g", offset, size=size)
    return Settlement(member=f"m0.0.{offset}", group="g", verdict=verdict, record=record)


class Heard:
    """Who hears what became of items."""

    def __init__(self) -> None:
        self.settled: dict[int, Settled] = {}
        self.order: list[int] = []

    def of(self, number: int) -> Callable[[Settled], None]:
        def note(settled: Settled) -> None:
            self.settled[number] = settled
            self.order.append(number)

        return note


@asynccontextmanager
async def committing(
    server: EmbeddedServer,
) -> AsyncIterator[tuple[AtWork, Committer, Watched, Heard, Tenure]]:
    async with at_work(server) as work:
        lease = await work.leases.acquire(work.place.lease)
        assert lease is not None
        tenure = Tenure(work.subscription, work.place, lease, dataset="ds-1", clock=work.clock)
        commits, heard = Watched(work.store), Heard()
        committer = Committer(commits, tenure, on_committed=lambda: None)
        committer.start()
        try:
            yield work, committer, commits, heard, tenure
        finally:
            await committer.stop(seconds=0)


async def test_one_call_is_under_way_and_what_comes_meanwhile_goes_with_the_next(
    store_server: EmbeddedServer,
) -> None:
    async with committing(store_server) as (work, committer, commits, heard, tenure):
        for offset in range(250):
            committer.submit(item(offset), heard.of(offset))
        await committer.stop(seconds=5)
        assert commits.calls == [100, 100, 50]
        assert commits.most == 1
        assert heard.order == list(range(250))
        assert await work.low() == 250
        assert tenure.log_end > 0


async def test_a_call_is_not_larger_than_a_mebibyte_but_for_one_item(
    store_server: EmbeddedServer,
) -> None:
    async with committing(store_server) as (_, committer, commits, heard, tenure):
        for offset, size in enumerate((400_000, 400_000, 400_000, 2_000_000, 10)):
            committer.submit(item(offset, Verdict.AGAIN, size=size), heard.of(offset))
        await committer.stop(seconds=5)
        assert commits.calls == [2, 1, 1, 1]
        assert tenure.retry_bytes > 3_200_000


async def test_a_call_whose_reply_was_lost_is_made_again_as_it_was(
    store_server: EmbeddedServer,
) -> None:
    """F-25: it is known, and told all the same."""
    async with committing(store_server) as (work, committer, commits, heard, _):
        commits.lose = 2
        committer.submit(item(0, Verdict.AGAIN), heard.of(0))
        committer.submit(item(1, Verdict.BEHIND), heard.of(1))
        await committer.stop(seconds=5)
        assert commits.numbers == [1, 1, 1]
        assert [each.outcome for each in heard.settled.values()] == ["known", "known"]
        assert {each.state for each in heard.settled.values()} == {GroupState.RETRYING}
        assert await work.count("retry") == 2


async def test_a_refusal_ends_the_tenure_and_nobody_is_told(store_server: EmbeddedServer) -> None:
    async with committing(store_server) as (work, committer, commits, heard, tenure):
        lost = asyncio.Event()
        tenure.on_lost = lost.set
        await work.store.call("HINCRBY", work.place.lease, "epoch", 1)
        committer.submit(item(0), heard.of(0))
        async with asyncio.timeout(5):
            await lost.wait()
        committer.submit(item(1), heard.of(1))
        await committer.stop(seconds=5)
        assert heard.order == []
        assert len(commits.calls) == 1
        assert await work.low() == 0


async def test_no_heads_are_asked_for_by_one_that_stops(store_server: EmbeddedServer) -> None:
    async with committing(store_server) as (_, committer, commits, heard, _tenure):
        committer.wants_heads = False
        committer.submit(item(0), heard.of(0))
        await committer.stop(seconds=5)
        assert commits.numbers == [0]
