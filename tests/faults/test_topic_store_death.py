"""The store is killed while messages are produced; clients repeat what they have no receipt for.

With deduplication every message is there exactly once, in the order of its group.
"""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from tests.topics.conftest import process_at
from waystation.errors import StoreError
from waystation.messages.envelope import Envelope
from waystation.testing import private_server
from waystation.topics.router import hash_of
from waystation.types.message import Receipt
from waystation.types.topic import TopicOptions

GROUPS = [f"g{n}" for n in range(8)]


@pytest.mark.slow
async def test_every_message_is_there_once_when_the_store_dies_under_its_producers(
    tmp_path: Path,
) -> None:
    """F-06"""
    with private_server() as server:
        async with process_at(server, tmp_path) as bench:
            options = TopicOptions(dedup_seconds=3600)
            await bench.topics.create("default", "orders", partitions=3, options=options)
            deaths = 0
            done = asyncio.Event()

            async def send(group: str) -> int:
                number = 0
                while not done.is_set():
                    ids = [f"{group}-{number + n}" for n in range(3)]
                    envelopes = [
                        Envelope(id=each, project="default", data=b"x", group=group) for each in ids
                    ]
                    try:
                        results = await bench.producer.produce("default", "orders", envelopes)
                    except StoreError:
                        continue  # Not a single one was sent: the topic could not be looked at.
                    if all(isinstance(result, Receipt) for result in results):
                        number += 3
                return number

            async def kill() -> None:
                nonlocal deaths
                for _ in range(3):
                    await asyncio.sleep(0.2)
                    os.kill(server.process_id, signal.SIGKILL)
                    deaths += 1
                    await bench.store.ping()
                await asyncio.sleep(0.2)
                done.set()

            *counts, _ = await asyncio.gather(*(send(group) for group in GROUPS), kill())

            assert deaths == 3
            topic = await bench.topics.get("default", "orders")
            found: dict[str, list[str]] = {group: [] for group in GROUPS}
            for _, partition, message in await bench.contents(topic):
                assert message.group is not None
                assert partition == topic.target.router.partition_of(hash_of(message.group))
                found[message.group].append(message.id)
            for group, count in zip(GROUPS, counts, strict=True):
                assert count > 0
                assert found[group] == [f"{group}-{n}" for n in range(count)]
