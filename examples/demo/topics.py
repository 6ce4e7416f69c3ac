"""Topics in the demo: one that grows under its producers, and loses neither message nor order."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable

from demo.stage import Stage
from demo.station import DemoStation
from waystation.client import AsyncWaystation, NewMessage, Receipt, Topic, TopicMessage

_TOPIC = "scans"
_SCANS = 12_000
_PARCELS = 40
#: Divides the parcels: the scans of each come from one producer, so their order is known.
_PRODUCERS = 4
_SHARDS = 4
_REPEATED = 200
#: The topic, and how many messages history has to have of it.
SCANS = (_TOPIC, _SCANS)


async def a_topic_grows_under_load(stage: Stage, station: DemoStation) -> None:
    """Adds a storage topic and switches to it while all produce; checks what is found."""
    stage.act(f"{_SCANS:,} scans of {_PARCELS} parcels, in order; their topic grows on the way")
    progress = _Progress(stage.progress("produced", _SCANS))
    async with AsyncWaystation(station.url) as client:
        await client.topics.create(_TOPIC, partitions=4, grouped=True, dedup_seconds=600)
        producing = [
            asyncio.create_task(_produce(client, range(first, _SCANS, _PRODUCERS), progress))
            for first in range(_PRODUCERS)
        ]
        await progress.third.wait()
        await client.topics.add_storage_topic(_TOPIC, 12)
        topic = await client.topics.switch_produce(_TOPIC)
        stage.say("from 4 to 12 partitions, with scans in flight; nothing is moved")
        await asyncio.gather(*producing)

        found = await _everything(client, topic)
        numbers = [message.content["scan"] for message in found]
        stage.check("scans found", len(set(numbers)), _SCANS)
        stage.check("scans found twice", len(numbers) - len(set(numbers)), 0)
        stage.check("the scans of every parcel are in order", _in_order(found), True)
        stage.check("storage topics that have some", len({each.storage for each in found}), 2)
        stage.check(f"parcels that changed their shard of {_SHARDS}", await _moved(client), 0)
        # The first ones again, as after a lost reply.
        again = await client.topics.produce_many(_TOPIC, map(_scan, range(_REPEATED)))
        receipts = [each for each in again if isinstance(each, Receipt)]
        stage.check("scans sent again and known", sum(r.duplicate for r in receipts), _REPEATED)
        before = sum(receipt.storage == 0 for receipt in receipts)
        stage.say(f"known from before the topic grew: {before}")


class _Progress:
    """Counts receipts; `third` is set when a third of them is there."""

    def __init__(self, done: Callable[[], None]) -> None:
        self._done = done
        self._count = 0
        self.third = asyncio.Event()

    def on_receipt(self, _: object) -> None:
        self._done()
        self._count += 1
        if self._count == _SCANS // 3:
            self.third.set()


async def _produce(client: AsyncWaystation, numbers: range, progress: _Progress) -> None:
    async with client.topics.producer(_TOPIC, batch=50, waiting=200) as producer:
        sent = []
        for number in numbers:
            scan = _scan(number)
            sent.append(await producer.send(scan.data, id=scan.id, group=scan.group))
            sent[-1].add_done_callback(progress.on_receipt)
        await asyncio.gather(*sent)


def _scan(number: int) -> NewMessage:
    return NewMessage({"scan": number}, id=f"scan-{number}", group=f"parcel-{number % _PARCELS}")


async def _everything(client: AsyncWaystation, topic: Topic) -> list[TopicMessage]:
    """All messages, partition after partition, in the order in which they are kept."""
    return [
        message
        for index, storage in enumerate(topic.storage)
        for partition in range(storage.partitions)
        async for message in client.topics.messages(_TOPIC, storage=index, partition=partition)
    ]


def _in_order(messages: list[TopicMessage]) -> bool:
    parcels = defaultdict(list)
    for message in messages:
        parcels[message.group].append(message.content["scan"])
    return all(scans == sorted(scans) for scans in parcels.values())


async def _moved(client: AsyncWaystation) -> int:
    """How many parcels are not in the same shard of both storage topics."""
    moved = 0
    for parcel in range(_PARCELS):
        where = await client.topics.where(_TOPIC, f"parcel-{parcel}", shards=_SHARDS)
        moved += len({each.shard for each in where.positions}) != 1
    return moved
