"""Requests that are begun without a task: who is told what came of them, and who is not."""

from __future__ import annotations

import asyncio

from tests.delivery.test_sender import sending
from waystation.delivery.addresses import AddressGuard
from waystation.delivery.request import Failure, Outcome, Outgoing
from waystation.delivery.sender import Sender
from waystation.testing.endpoint import Answer, FakeEndpoint


async def known(sender: Sender, endpoint: FakeEndpoint) -> None:
    """The endpoint's address is known from here on: nothing has to be waited for."""
    assert (await sender.send(Outgoing(url=endpoint.url))).succeeded


async def test_who_begins_a_request_hears_its_outcome_and_may_begin_the_next_at_once() -> None:
    async with (
        FakeEndpoint(plan=[Answer(200), Answer(503), Answer(200)]) as endpoint,
        sending() as sender,
    ):
        heard, last = list[int](), asyncio.get_running_loop().create_future()

        def done(outcome: Outcome) -> None:
            heard.append(outcome.status)
            if len(heard) < 20:
                assert sender.begin(Outgoing(url=endpoint.url, body=b"%d" % len(heard)), done)
            else:
                last.set_result(None)

        await known(sender, endpoint)
        assert sender.begin(Outgoing(url=endpoint.url, body=b"0"), done) is not None
        assert heard == [], "never before it has returned"
        await asyncio.wait_for(last, 10)

        assert heard == [503] + [200] * 19
        # One after the other, over the connection that is kept, each with its own body.
        assert [int(each.body) for each in endpoint.received[1:]] == list(range(20))
        assert endpoint.connections == 1


async def test_a_request_that_was_given_up_tells_nobody_and_leaves_nothing_behind() -> None:
    async with FakeEndpoint(plan=[Answer(delay_seconds=0.2)]) as endpoint, sending() as sender:
        heard = list[Outcome]()
        await known(sender, endpoint)
        give_up = sender.begin(Outgoing(url=endpoint.url), heard.append)
        assert give_up is not None
        await endpoint.until(2)

        give_up()
        give_up()

        assert (await sender.send(Outgoing(url=endpoint.url))).succeeded
        assert heard == []
        assert repr(sender) == "<Sender [0 under way]>"


async def test_one_that_ends_may_give_up_others_that_end_in_the_same_turn() -> None:
    """As an owner does that learns with one outcome that its shard is another's."""
    async with FakeEndpoint(plan=[Answer(delay_seconds=0.05)]) as endpoint, sending() as sender:
        heard, others, first = list[int](), [], asyncio.Event()

        def done(outcome: Outcome) -> None:
            heard.append(outcome.status)
            for give_up in others:
                give_up()
            first.set()

        await known(sender, endpoint)
        for _ in range(30):
            others.append(sender.begin(Outgoing(url=endpoint.url), done))
        await asyncio.wait_for(first.wait(), 10)

        assert (await sender.send(Outgoing(url=endpoint.url))).succeeded
        assert heard == [200]


async def test_what_must_not_be_sent_or_has_to_wait_is_not_begun() -> None:
    async with FakeEndpoint() as endpoint, sending() as sender:
        heard = list[Outcome]()
        broken = Outgoing(url=endpoint.url, headers=(("x-a", "1\r\nx-b: 2"),))
        unresolved = Outgoing(url=endpoint.url.replace("127.0.0.1", "localhost"))

        assert sender.begin(broken, heard.append) is None
        assert sender.begin(unresolved, heard.append) is None

        # The same through `send`, which says why, or waits.
        assert (await sender.send(broken)).failure is Failure.FORBIDDEN
        assert (await sender.send(unresolved)).succeeded
        assert sender.begin(unresolved, heard.append) is not None
        await endpoint.until(2)
    async with FakeEndpoint() as endpoint, sending(AddressGuard()) as sender:
        assert sender.begin(Outgoing(url=endpoint.url), heard.append) is None
        assert (await sender.send(Outgoing(url=endpoint.url))).failure is Failure.FORBIDDEN
        assert endpoint.received == []


async def test_closing_tells_those_whose_requests_are_under_way() -> None:
    async with FakeEndpoint(plan=[Answer(), Answer(delay_seconds=5)]) as endpoint:
        heard = list[Outcome]()
        async with sending() as sender:
            await known(sender, endpoint)
            sender.begin(Outgoing(url=endpoint.url), heard.append)
            await endpoint.until(2)

        assert [each.failure for each in heard] == [Failure.CANCELLED]
