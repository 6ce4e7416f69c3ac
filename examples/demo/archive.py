"""The archive in the demo: sleepers leave the store though who archives dies, and come back."""

from __future__ import annotations

import asyncio

from demo.process import DemoProcess
from demo.stage import ACT_SECONDS_MAX, Stage
from demo.station import DemoStation
from waystation.client import AsyncTransaction, AsyncWaystation

_APP = "demo.steps:app"
_PIPELINE = "demo-rest"
_STEP = "demo/approve"
_SLEEPERS = 100
#: Of which so many have asked for a webhook.
_TOLD = 10


async def sleepers_in_the_archive(stage: Stage, station: DemoStation) -> None:
    """Has some sleep, kills who archives them, wakes them by a switch, and hears of their ends."""
    stage.act(f"{_SLEEPERS} fall asleep and leave the store; who archives them dies on the way")
    worker = station.worker(_APP)
    try:
        await asyncio.to_thread(worker.facts)
        async with AsyncWaystation(station.url) as client:
            started = await _start(client, station)
            await _until_archived(client, _SLEEPERS // 5)
            worker = await _kill_archiver(stage, station, client, worker)
            await _until_archived(client, _SLEEPERS)
            alone = await _until_alone(started)
            stage.check("asleep in the archive alone", alone, _SLEEPERS)
            status = await client.archive.status()
            waiting = sum(each.waiting for each in status.cells)
            stage.say(f"archive status: {waiting} wait to be archived")
            refused = sum(each.set_aside for each in status.cells)
            stage.check("refused by the archive", refused, 0)
            switched = await asyncio.gather(
                *(each.set_switch("approved", "yes") for each in started)
            )
            woken = sum(each.outcome == "woken" for each in switched)
            stage.check("brought back by a switch", woken, _SLEEPERS)
            done = stage.progress("ended", _SLEEPERS)
            right = 0
            for number, each in enumerate(started):
                end = await each.wait(f"{ACT_SECONDS_MAX}s")
                right += end.output == {"number": number, "cents": 100 * number}
                done()
            stage.check("went on where they were, and ended well", right, _SLEEPERS)
            await _until_told(station)
    finally:
        worker.stop()
    told = set(station.receiver.heard)
    stage.check("webhooks delivered", len(told & {each.id for each in started}), _TOLD)
    stage.check("of these, after two refusals each", station.receiver.unheard, 2 * _TOLD)


async def _start(client: AsyncWaystation, station: DemoStation) -> list[AsyncTransaction]:
    def metadata(number: int) -> dict[str, str]:
        # A receiver each: otherwise one that refuses so often would be left alone for a while.
        return {"webhook": f"{station.receiver.url}/ends/{number}"} if number < _TOLD else {}

    starts = (
        client.transactions.start(
            _PIPELINE,
            {"number": number},
            external_id=f"{_PIPELINE}-{number}",
            metadata=metadata(number),
        )
        for number in range(_SLEEPERS)
    )
    return list(await asyncio.gather(*starts))


async def _until_alone(started: list[AsyncTransaction]) -> int:
    """Waits until all have left the store: what was written and not confirmed is written again."""
    while True:
        reasons = await asyncio.gather(*(each.why() for each in started))
        alone = sum(each.code == "archived" for each in reasons)
        if alone == len(started):
            return alone
        await asyncio.sleep(0.05)


async def _until_archived(client: AsyncWaystation, count: int) -> None:
    """Waits until the archive has so many that sleep."""
    while True:
        rows = client.transactions.archived(status="waiting_switch", pipeline=_PIPELINE)
        if len([each async for each in rows]) >= count:
            return
        await asyncio.sleep(0.02)


async def _kill_archiver(
    stage: Stage, station: DemoStation, client: AsyncWaystation, worker: DemoProcess
) -> DemoProcess:
    """Kill the process that archives, server or worker, and restart it; return the worker."""
    cells = (await client.archive.status()).cells
    workers = await station.nodes_with(_STEP)
    left = f"{sum(cell.waiting for cell in cells)} to go"
    if sum(cell.archiver in workers for cell in cells) * 2 > len(cells):
        stage.say(f"kill -9 {worker.kill()}: the worker, which archives; {left}")
        worker = station.worker(_APP)
        await asyncio.to_thread(worker.facts)
    else:
        stage.say(f"kill -9 {station.kill()}: the station, which archives; {left}")
        await asyncio.to_thread(station.start)
    return worker


async def _until_told(station: DemoStation) -> None:
    while len(station.receiver.heard) < _TOLD:
        await asyncio.sleep(0.02)
