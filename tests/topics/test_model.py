"""Model test: random calls on topics in a real store and on a model give the same results.

Two processes produce, each with its own cached definition. Storage topics are added, switches are
completed or interrupted, and logs are trimmed while readers hold them. After each call, offsets
have no gap, and the topic has each message once, in the order of its group, in its partition.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Coroutine, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from tests.helpers.examples import RecordProperty, run_machine
from tests.models.topic import ModelMessage, ModelTopic
from tests.topics.conftest import TopicProcess, process_at
from waystation.logs.protocol import Retention
from waystation.messages.envelope import Envelope, pack, unpack
from waystation.store.embedded.server import EmbeddedServer
from waystation.types.message import Receipt
from waystation.types.topic import TopicOptions

_T = TypeVar("_T")

STORAGE_MAX = 5

processes = st.sampled_from([0, 1])
counts = st.sampled_from([1, 2, 3, 4, 6, 5, 12])
#: Few ids, so that some repeat; with a group or without.
messages = st.tuples(
    st.sampled_from([None, None, "g1", "g2", "g3", "g4", "g5"]),
    st.sampled_from([f"m{n}" for n in range(40)]),
)
batches = st.lists(messages, min_size=1, max_size=12)
fractions = st.floats(0, 1)
readers = st.sampled_from(["r1", "r2"])


class Bridge:
    """Event loop and two processes for all examples."""

    def __init__(self, server: EmbeddedServer, folder: Path) -> None:
        self._runner = asyncio.Runner()
        self._stack = AsyncExitStack()
        self.opened: list[TopicProcess] = [
            self.wait(self._stack.enter_async_context(process_at(server, folder))) for _ in range(2)
        ]
        self.wait(self._empty())
        self.names = (f"t{number}" for number in itertools.count())

    async def _empty(self) -> None:
        await self.opened[0].store.call("FLUSHALL")

    def wait(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Run a coroutine to its end."""
        return self._runner.run(work)

    def close(self) -> None:
        """Close the processes and the event loop."""
        self.wait(self._stack.aclose())
        self._runner.close()


@pytest.fixture(scope="module")
def bridge(
    store_server: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Bridge]:
    made = Bridge(store_server, tmp_path_factory.mktemp("model"))
    yield made
    made.close()


class TopicMachine(RuleBasedStateMachine):
    """One topic and two processes."""

    bridge: Bridge

    @initialize(partitions=counts)
    def begin(self, partitions: int) -> None:
        self.opened = self.bridge.opened
        self.name = next(self.bridge.names)
        self.unique = itertools.count()
        options = TopicOptions(dedup_seconds=3600)
        self.wait(
            self.opened[0].topics.create(
                "default", self.name, partitions=partitions, options=options
            )
        )
        self.model = ModelTopic.of(partitions)

    def wait(self, work: Coroutine[Any, Any, _T]) -> _T:
        return self.bridge.wait(work)

    @property
    def may_switch(self) -> bool:
        return self.model.pointer + 1 < len(self.model.storage)

    # -- Rules -------------------------------------------------------------------------------

    @rule(process=processes, batch=batches)
    def produce(self, process: int, batch: list[tuple[str | None, str]]) -> None:
        """Produce a batch in one process, even if its cached definition is outdated."""
        envelopes = [_envelope(group, message_id) for group, message_id in batch]
        sent = [_modelled(envelope) for envelope in envelopes]
        expected = self.model.expect(sent)
        receipts = self.wait(self._produce(process, envelopes))
        for message, receipt, place in zip(sent, receipts, expected, strict=True):
            assert receipt.duplicate is (place is None), message
            if place is not None:
                assert (receipt.storage, receipt.partition) == place, message
        self._take_over(sent, receipts)

    @rule(process=processes, sizes=st.tuples(st.integers(1, 5), st.integers(1, 5)))
    def produce_during_switch(self, process: int, sizes: tuple[int, int]) -> None:
        """Produce batches in both processes during a switch.

        The model does not know the storage topic that a batch reaches.
        """
        envelopes = [
            [_envelope(f"p{n}", f"u{next(self.unique)}") for _ in range(3 * size)]
            for n, size in enumerate(sizes)
        ]

        async def all_at_once() -> list[list[Receipt]]:
            work = []
            for index, own in enumerate(envelopes):
                for part in (own[::3], own[1::3], own[2::3]):
                    work.append(self._produce(index, part))
            switch = self.opened[process].topics.switch_produce("default", self.name)
            *receipts, _ = await asyncio.gather(*work, switch)
            return receipts

        receipts = self.wait(all_at_once())
        while self.model.pointer < self._pointer():
            self.model.switch()
        flat, sent = [], []
        for index, own in enumerate(envelopes):
            ordered = [*own[::3], *own[1::3], *own[2::3]]
            placed = list(itertools.chain.from_iterable(receipts[3 * index : 3 * index + 3]))
            # The batches of one group and process keep the order of their calls.
            assert [(each.storage, each.offset) for each in placed] == sorted(
                (each.storage, each.offset) for each in placed
            )
            sent += [_modelled(envelope) for envelope in ordered]
            flat += placed
        assert not [receipt for receipt in flat if receipt.duplicate]
        self._take_over(sent, flat)

    @precondition(lambda self: len(self.model.storage) < STORAGE_MAX)
    @rule(process=processes, partitions=counts)
    def add_storage(self, process: int, partitions: int) -> None:
        topics = self.opened[process].topics
        topic = self.wait(topics.add_storage_topic("default", self.name, partitions))
        self.model.add_storage(partitions)
        assert [storage.router for storage in topic.storage] == self.model.spreads
        assert topic.produce_pointer == self.model.pointer

    @rule(process=processes)
    def switch(self, process: int) -> None:
        topic = self.wait(self.opened[process].topics.switch_produce("default", self.name))
        self.model.switch()
        assert topic.produce_pointer == self.model.pointer

    @precondition(lambda self: self.may_switch)
    @rule(seals=st.sets(st.integers(0, 11), min_size=1))
    def crash_during_switch(self, seals: set[int]) -> None:
        """Seal some partitions of the storage topic, as a process that crashes during a switch."""
        pointer = self.model.pointer
        partitions = self.model.storage[pointer]
        for partition in {seal % len(partitions) for seal in seals}:
            self.wait(self.opened[0].logs.seal(self._log(pointer), partition, pointer + 1))
            partitions[partition].sealed = True

    @rule(reader=readers, storage=fractions, partition=fractions, at=fractions)
    def hold(self, reader: str, storage: float, partition: float, at: float) -> None:
        log, number, found = self._pick(storage, partition)
        offset = found.first + round(at * len(found.messages))
        self.wait(self.opened[0].logs.hold(log, number, reader, offset))
        found.holds[reader] = offset

    @rule(reader=readers, storage=fractions, partition=fractions)
    def release(self, reader: str, storage: float, partition: float) -> None:
        log, number, found = self._pick(storage, partition)
        self.wait(self.opened[0].logs.release(log, number, reader))
        found.holds.pop(reader, None)

    @rule(storage=fractions, partition=fractions, left=fractions, drops=st.booleans())
    def trim(self, storage: float, partition: float, left: float, drops: bool) -> None:
        log, number, found = self._pick(storage, partition)
        max_bytes = max(1, round(left * found.bytes))
        policy = "drop_and_count" if drops else "refuse"

        async def trimmed() -> None:
            logs = self.opened[0].logs
            await logs.set_retention(log, number, Retention(max_bytes=max_bytes, policy=policy))
            while (await logs.trim(log, number)).more:
                pass
            await logs.set_retention(log, number, Retention())

        self.wait(trimmed())
        found.trim(max_bytes, drops=drops)

    # -- Invariants --------------------------------------------------------------------------

    @invariant()
    def store_and_model_agree(self) -> None:
        self.wait(self._compare())

    async def _compare(self) -> None:
        logs = self.opened[0].logs
        order: dict[str, list[tuple[int, int]]] = {}
        for index, partitions in enumerate(self.model.storage):
            for number, expected in enumerate(partitions):
                state = await logs.state(self._log(index), number)
                assert (state.first, state.end) == (expected.first, expected.end)
                assert (state.sealed is not None) is expected.sealed
                assert (state.bytes, state.dropped) == (expected.bytes, expected.dropped)
                entries = list(
                    (
                        await logs.read(self._log(index), number, expected.first, limit=1000)
                    ).entries()
                )
                offsets = [entry.offset for entry in entries]
                assert offsets == list(range(expected.first, expected.end))
                found = [unpack(entry.payload, project="default") for entry in entries]
                assert [_modelled(message) for message in found] == expected.messages
                for message in expected.messages:
                    spread = self.model.spreads[index]
                    assert spread.partition_of(message.hashed) == number
                    if message.group is not None:
                        order.setdefault(message.group, []).append((index, number))
        for places in order.values():
            # A group has one partition in each storage topic.
            assert len(set(places)) == len({index for index, _ in places})

    # -- Helpers -----------------------------------------------------------------------------

    async def _produce(self, process: int, envelopes: list[Envelope]) -> list[Receipt]:
        results = await self.opened[process].producer.produce("default", self.name, envelopes)
        for result in results:
            assert isinstance(result, Receipt), result
        return results  # type: ignore[return-value]

    def _take_over(self, sent: list[ModelMessage], receipts: list[Receipt]) -> None:
        new = [pair for pair in zip(receipts, sent, strict=True) if not pair[0].duplicate]
        for receipt, message in sorted(
            new, key=lambda pair: (pair[0].storage, pair[0].partition, pair[0].offset)
        ):
            self.model.place(message, receipt.storage, receipt.partition, receipt.offset)
        for receipt, message in zip(receipts, sent, strict=True):
            place = (receipt.storage, receipt.partition, receipt.offset)
            assert self.model.places[message.scope] == place
        # Later messages of a group in the batch have higher offsets.
        last: dict[str | None, tuple[int, int]] = {}
        for receipt, message in new:
            if message.group is not None:
                at = (receipt.storage, receipt.offset)
                assert at > last.get(message.group, (-1, -1))
                last[message.group] = at

    def _pick(self, storage: float, partition: float) -> tuple[str, int, Any]:
        index = round(storage * (len(self.model.storage) - 1))
        number = round(partition * (len(self.model.storage[index]) - 1))
        return self._log(index), number, self.model.storage[index][number]

    def _log(self, index: int) -> str:
        return f"t.default.{self.name}.{index}"

    def _pointer(self) -> int:
        return self.wait(self.opened[0].topics.get("default", self.name)).produce_pointer


def _envelope(group: str | None, message_id: str) -> Envelope:
    return Envelope(id=message_id, project="default", data=message_id.encode(), group=group)


def _modelled(envelope: Envelope) -> ModelMessage:
    return ModelMessage(envelope.id, envelope.group, len(pack(envelope)))


def test_topic_service_with_random_calls_equals_model(
    bridge: Bridge, record_property: RecordProperty
) -> None:
    # EXAMPLES=2000 runs more examples. A failure prints how to replay it.
    TopicMachine.bridge = bridge
    run_machine(TopicMachine, record_property, steps=40)
