"""Webhooks in the demo: signed, tried again, and delivered although the station dies."""

from __future__ import annotations

import asyncio

from demo.stage import Stage
from demo.station import DemoStation
from waystation.client import AsyncWaystation

_PAYMENTS = 300


async def payments_to_a_webhook(stage: Stage, station: DemoStation) -> None:
    """Publishes to a channel with a webhook, kills the station, and checks what was received."""
    receiver = station.receiver
    stage.act(f"{_PAYMENTS} payments to a webhook that refuses some; the station dies on the way")
    async with AsyncWaystation(station.url) as client:
        messages = [(f"payment-{number}", {"cents": number}) for number in range(_PAYMENTS)]
        await client.channels.publish_many("payments", messages)
        while len(receiver.accepted) < _PAYMENTS // 10:
            await asyncio.sleep(0.002)
        killed = station.kill()
        stage.say(f"kill -9 {killed}: the station, {len(set(receiver.accepted))} delivered so far")
        station.start()
        # The one who published repeats it, as after a lost reply: nothing is sent for that.
        await client.channels.publish_many("payments", messages)
    done = stage.progress("delivered", _PAYMENTS)
    shown = 0
    while shown < _PAYMENTS:
        await asyncio.sleep(0.02)
        delivered = len(set(receiver.accepted))
        for _ in range(shown, delivered):
            done()
        shown = delivered
    stage.check("payments delivered", len(set(receiver.accepted)), _PAYMENTS)
    stage.check("requests whose signature did not hold", receiver.forged, 0)
    again = len(receiver.accepted) - len(set(receiver.accepted))
    stage.say(f"refused and tried again: {receiver.refused}")
    stage.say(f"delivered twice because of the kill, with the same id: {again}")
