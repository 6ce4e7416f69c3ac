"""Model test: random calls on channels in a real store and on a model give the same results."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from contextlib import AsyncExitStack
from typing import Any, TypeVar

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
)

from tests.channels.helpers import CLOCK_MAX, CLOCK_MIN, ChannelStore, open_channels
from tests.helpers.examples import RecordProperty, run_machine
from tests.models.channel import Expiring, ModelChannel, following
from waystation.channels import keys
from waystation.channels.model import encode_handle
from waystation.errors import InvalidInputError, SubscriberNotFoundError
from waystation.store.embedded.server import EmbeddedServer

_T = TypeVar("_T")

EXPIRE = 9_985
TTL = EXPIRE + 15
#: Length of a step of test time. It is much longer than a run takes in real time.
STEP_SECONDS = 50
STEPS = TTL // STEP_SECONDS

projects = st.sampled_from(["default", "shop"])
subscribers = st.sampled_from(["s1", "s1", "s2"])
message_ids = st.sampled_from([f"m{n}" for n in range(12)])
ways = st.sampled_from(["beginning", "end", "clock", "time"])
limits = st.sampled_from([0, 1, 2, 3, 64])
steps = st.sampled_from([1, 60, 80, 100, 120, STEPS - 1, STEPS])
#: Clocks close to the wrap.
near_the_turn = st.integers(CLOCK_MAX - 6, CLOCK_MAX)
#: Clock of a channel at the start; None: the channel does not exist.
starts = st.one_of(
    st.none(), near_the_turn, near_the_turn, st.integers(CLOCK_MIN, CLOCK_MAX), st.integers(-4, 1)
)


class Bridge:
    """Runs coroutines on one event loop, with one set of connections for all runs."""

    def __init__(self, server: EmbeddedServer) -> None:
        self._runner = asyncio.Runner()
        self._stack = AsyncExitStack()
        opening = self._stack.enter_async_context(open_channels(server, expire_seconds=EXPIRE))
        self.opened: ChannelStore = self.wait(opening)

    def wait(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Run a coroutine to its end."""
        return self._runner.run(work)

    def close(self) -> None:
        """Close the connections and the event loop."""
        self.wait(self._stack.aclose())
        self._runner.close()


@pytest.fixture(scope="module")
def bridge(store_server: EmbeddedServer) -> Iterator[Bridge]:
    made = Bridge(store_server)
    yield made
    made.close()


class ChannelMachine(RuleBasedStateMachine):
    """A channel of the same name in two projects, each with two subscribers."""

    bridge: Bridge
    handles = Bundle("handles")

    @initialize(default=starts, shop=starts)
    def begin(self, default: int | None, shop: int | None) -> None:
        """Empty the store and set the clocks to their start values."""
        self.opened = self.bridge.opened
        self.channels = self.opened.channels
        self.wait(self.empty())
        self.models = {"default": ModelChannel(TTL), "shop": ModelChannel(TTL)}
        for project, start in (("default", default), ("shop", shop)):
            if start is not None:
                clock = keys.clock(keys.channel_tag(project, "ch"))
                self.wait(self.command("SET", clock, start, "EX", TTL))
                self.models[project].clock = Expiring(start, TTL)
            self.subscribe(project, "s1")

    def wait(self, work: Coroutine[Any, Any, _T]) -> _T:
        return self.bridge.wait(work)

    async def command(self, *command: Any) -> Any:
        return await self.opened.store.call(*command)

    async def empty(self) -> None:
        # Do not use FLUSHALL, because it would delete the time of the time machine.
        await self.opened.store.unlink(await self.opened.store.call("KEYS", "c.*"))

    @rule(project=projects, message_id=message_ids)
    def publish(self, project: str, message_id: str) -> None:
        content = f'"{message_id}"'.encode()
        published = self.wait(self.channels.publish(project, "ch", message_id, content))
        expected = self.models[project].publish(message_id)
        assert (published.clock, published.duplicate) == expected

    @rule(project=projects, several=st.lists(message_ids, min_size=2, max_size=8))
    def publish_several(self, project: str, several: list[str]) -> None:
        for message_id in several:
            self.publish(project, message_id)

    @rule(project=projects, several=st.lists(message_ids, min_size=1, max_size=8))
    def publish_many(self, project: str, several: list[str]) -> None:
        messages = [(message_id, f'"{message_id}"'.encode()) for message_id in several]
        published = self.wait(self.channels.publish_many(project, "ch", messages))
        expected = [self.models[project].publish(message_id) for message_id in several]
        assert [(each.clock, each.duplicate) for each in published] == expected

    @rule(project=projects, count=st.integers(2, 5), message_id=message_ids)
    def publish_copies_at_once(self, project: str, count: int, message_id: str) -> None:
        async def all_at_once() -> list[bool]:
            content = f'"{message_id}"'.encode()
            published = await asyncio.gather(
                *(self.channels.publish(project, "ch", message_id, content) for _ in range(count))
            )
            return [each.duplicate for each in published]

        duplicates = self.wait(all_at_once())
        assert duplicates == [self.models[project].publish(message_id)[1] for _ in range(count)]

    @rule(project=projects, subscriber=subscribers)
    def subscribe(self, project: str, subscriber: str) -> None:
        created = self.wait(self.channels.subscribe(project, "ch", subscriber))
        assert created == self.models[project].subscribe(subscriber)

    @precondition(lambda self: all(len(model.known) > 5 for model in self.models.values()))
    @rule(project=projects, subscriber=subscribers)
    def unsubscribe(self, project: str, subscriber: str) -> None:
        deleted = self.wait(self.channels.unsubscribe(project, "ch", subscriber))
        assert deleted == self.models[project].unsubscribe(subscriber)

    @rule(target=handles, project=projects, subscriber=subscribers, limit=limits)
    def fetch(self, project: str, subscriber: str, limit: int) -> Any:
        expected = self.models[project].fetch(subscriber, limit)
        fetching = self.channels.fetch(project, "ch", subscriber, limit=limit)
        if expected is None:
            with pytest.raises(SubscriberNotFoundError):
                self.wait(fetching)
            return multiple()
        fetched = self.wait(fetching)
        contents = [bytes(message.content).decode() for message in fetched.messages]
        assert contents == [f'"{message_id}"' for message_id in expected[0]]
        ids = [message.id for message in fetched.messages]
        assert (ids, fetched.more, fetched.expired, fetched.last) == expected
        return multiple() if fetched.last is None else (subscriber, fetched.last)

    @rule(project=projects, subscriber=subscribers, limit=limits)
    def consume(self, project: str, subscriber: str, limit: int) -> None:
        """Fetch messages and acknowledge all of them."""
        handle = self.fetch(project, subscriber, limit)
        if isinstance(handle, tuple):
            self.ack(project, handle)

    @rule(project=projects, handle=handles)
    def ack(self, project: str, handle: tuple[str, int]) -> None:
        """Acknowledge with the handle of any earlier fetch, possibly of the other project."""
        subscriber, clock = handle
        expected = self.models[project].ack(subscriber, clock)
        acking = self.channels.ack(
            project, "ch", subscriber, encode_handle("ch", subscriber, clock)
        )
        if expected is None:
            with pytest.raises(SubscriberNotFoundError):
                self.wait(acking)
        else:
            assert self.wait(acking) == expected

    @rule(project=projects, subscriber=subscribers, how=ways, back=st.integers(-2, 8))
    def seek(self, project: str, subscriber: str, how: str, back: int) -> None:
        """Move a cursor to the start or end, or back by `back` clocks or `back` + 0.5 steps."""
        model = self.models[project]
        ago = back * STEP_SECONDS + STEP_SECONDS / 2
        target: float = following(int(model.clock.value) if model.clock else 0, -back)
        expected = model.seek(subscriber, how, model.now - ago if how == "time" else target)
        if how == "time":
            target = self.opened.clock.now_ms() - ago * 1000
        seeking = self.channels.seek(project, "ch", subscriber, how, int(target))
        if expected is None or expected == "range":
            with pytest.raises(SubscriberNotFoundError if not expected else InvalidInputError):
                self.wait(seeking)
        else:
            sought = self.wait(seeking)
            assert (sought.cursor, sought.unread) == expected

    @rule(count=steps, project=projects, limit=limits)
    def time_passes_for_others(self, count: int, project: str, limit: int) -> None:
        """Advance the time in two parts, with a fetch of one subscriber between them.

        The fetch extends the expiry of the subscriber, while messages expire.
        """
        self.time_passes(count // 2)
        self.fetch(project, "s1", limit)
        self.time_passes(count - count // 2)

    @rule(count=steps)
    def time_passes(self, count: int) -> None:
        if count == 0:
            return
        self.wait(self.opened.machine.advance(count * STEP_SECONDS))
        for model in self.models.values():
            model.advance(count * STEP_SECONDS)

    @invariant()
    def store_and_model_agree(self) -> None:
        expected: dict[str, tuple[str, float]] = {}
        for project, model in self.models.items():
            expected |= model.keys(keys.channel_tag(project, "ch"))
        found = self.wait(self.opened.keys())
        assert {key: value for key, (value, _) in found.items()} == {
            key: value for key, (value, _) in expected.items()
        }
        for key, (_, left) in found.items():
            assert expected[key][1] - STEP_SECONDS < left <= expected[key][1], key


def test_channel_service_with_random_calls_equals_model(
    bridge: Bridge, record_property: RecordProperty
) -> None:
    """Run the model test. EXAMPLES=2000 runs more examples. A failure prints how to replay it."""
    ChannelMachine.bridge = bridge
    run_machine(ChannelMachine, record_property, steps=60)
