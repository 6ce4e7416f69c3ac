"""Two tasks talk through a channel: one waits with a long poll, the other answers.

Run `waystation dev` in another terminal first, or set WAYSTATION_URL.
"""

import asyncio

from waystation import AsyncWaystation


async def main() -> None:
    """The question is asked before the answer exists; the poll hears of it when it does."""
    async with AsyncWaystation() as station:
        await station.channels.subscribe("answers", "asker")

        async def answer() -> None:
            await asyncio.sleep(0.2)
            await station.channels.publish("answers", {"approved": True})

        answering = asyncio.create_task(answer())
        batch = await station.channels.fetch("answers", "asker", timeout=10)
        await answering
        print("answer:", batch.messages[0].content)


asyncio.run(main())
