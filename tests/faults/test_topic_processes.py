"""Several processes produce while storage topics are added and switched.

Every message is found exactly once, in order within its group, in the partition that the router
says; what a killed process had a receipt for is there too.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

from tests.topics.conftest import OpenProcess, open_process  # noqa: F401 (a fixture)
from waystation.store.embedded.server import EmbeddedServer
from waystation.topics.router import hash_of

#: Produces batches of three for each of its groups, several under way, and prints each receipt.
_PRODUCING = """
import asyncio, sys
from pathlib import Path
from waystation.catalogue import SqliteCatalogue
from waystation.runtime.clock import Clock
from waystation.messages.envelope import Envelope
from waystation.logs.streams import StreamLogs
from waystation.store.client import Store
from waystation.store.address import parse_address
from waystation.subscriptions.definitions import SubscriptionDefinitions
from waystation.subscriptions.topic_readers import SubscriptionReaders
from waystation.topics.dedup import Deduplicator
from waystation.topics.producer import Producer
from waystation.types.message import Receipt
from waystation.topics.service import TopicService

async def main(url, file, name, batches):
    catalogue = SqliteCatalogue(Path(file))
    await catalogue.open()
    store, clock = Store(parse_address(url)), Clock()
    logs = StreamLogs(store)
    readers = SubscriptionReaders(SubscriptionDefinitions(catalogue, store, clock=clock), logs)
    topics = TopicService(catalogue, store, logs, readers, clock=clock)
    producer = Producer(topics, logs, Deduplicator(store, clock=clock))

    async def batch(group, first):
        ids = [f"{group}-{first + i}" for i in range(3)]
        envelopes = [Envelope(id=i, project="default", data=b"x", group=group) for i in ids]
        for result in await producer.produce("default", "orders", envelopes):
            assert isinstance(result, Receipt), result
            print(group, result.id, flush=True)

    async def send(group):
        under_way = []
        for number in range(int(batches)):
            under_way.append(asyncio.ensure_future(batch(group, 3 * number)))
            if len(under_way) > 5:
                await under_way.pop(0)
            await asyncio.sleep(0.001)
        await asyncio.gather(*under_way)

    await asyncio.gather(*(send(f"{name}-{n}") for n in range(3)))
    await store.close()
    await catalogue.close()

asyncio.run(main(*sys.argv[1:]))
"""


def start(server: EmbeddedServer, file: Path, name: str, batches: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", _PRODUCING, str(server.address), str(file), name, str(batches)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


async def test_every_message_is_found_once_and_in_order_while_storage_topics_are_switched(
    open_process: OpenProcess,  # noqa: F811 (the fixture)
    store_server: EmbeddedServer,
    tmp_path: Path,
) -> None:
    batches = 300
    async with open_process() as operator:
        await operator.topics.create("default", "orders", partitions=2)
        file = tmp_path / "catalogue.db"
        names = ["a", "b", "c"]
        processes = [start(store_server, file, name, batches) for name in names]
        victim = start(store_server, file, "victim", 10 * batches)
        # Only when all are at work.
        for process in (*processes, victim):
            assert process.stdout is not None
            await asyncio.to_thread(process.stdout.readline)
        for partitions in (4, 12, 5, 10):
            await operator.topics.add_storage_topic("default", "orders", partitions)
            await operator.topics.switch_produce("default", "orders")
        victim.kill()
        receipts = (await asyncio.to_thread(victim.communicate))[0].splitlines()
        for partitions in (20, 40):
            await operator.topics.add_storage_topic("default", "orders", partitions)
            await operator.topics.switch_produce("default", "orders")
        for process in processes:
            await asyncio.to_thread(process.communicate)
            assert process.returncode == 0

        topic = await operator.topics.get("default", "orders")
        assert topic.produce_pointer == 6
        found: dict[str, list[str]] = defaultdict(list)
        used = set()
        for index, partition, message in await operator.contents(topic):
            assert message.group is not None
            spread = topic.storage[index].router
            assert partition == spread.partition_of(hash_of(message.group))
            found[message.group].append(message.id)
            used.add(index)
        for name in names:
            for group in (f"{name}-{n}" for n in range(3)):
                assert found[group] == [f"{group}-{n}" for n in range(3 * batches)]
        for group in (f"victim-{n}" for n in range(3)):
            # No hole and no repetition, though nobody knows how far it came.
            assert found[group] == [f"{group}-{n}" for n in range(len(found[group]))]
        confirmed = {line.split()[1] for line in receipts if len(line.split()) == 2}
        present = {each for n in range(3) for each in found[f"victim-{n}"]}
        assert confirmed <= present, json.dumps(sorted(confirmed - present)[:5])
        # The switches really came in the middle of it.
        assert used >= {0, topic.produce_pointer}
