"""Events that wait in the lanes of a cell, in plain view: what is put is what can be found."""

from __future__ import annotations

from waystation.store.client import Store
from waystation.transactions import names
from waystation.transactions.reply_lanes import ReplyLayout, item_hash, reply_word
from waystation.transactions.wanted import Wanted

HOOK = "http://hook.example/refunds?token=1"


def word(letters: str = "", *, webhook: str = HOOK, channel: str = "", topic: str = "") -> str:
    """The field `reply` of a transaction of the default project."""
    wanted = Wanted(
        webhook=webhook,
        channel=channel,
        topic=topic,
        progress="p" in letters,
        status="s" in letters,
        poll_cancels="k" in letters,
    )
    return reply_word("default", wanted)


async def waiting_events(store: Store, cell: int = 0) -> dict[str, str]:
    """What waits, item → `<event> <version>`; each in one lane, each lane in the register."""
    (register,) = (each for each in ReplyLayout(cell + 1).registers if names.tag(cell) in each)
    lanes = [key.decode() for key in await store.call("KEYS", f"{names.tag(cell)}webhooksZ:*")]
    listed = {each.decode() for each in await store.call("ZRANGE", register, 0, -1)}
    assert set(lanes) <= listed, "a lane that nobody finds"
    found: dict[str, str] = {}
    for lane in lanes:
        for item in await store.call("ZRANGE", lane, 0, -1):
            event = await store.call("HGET", item_hash(cell), item)
            assert event is not None, f"{item} waits, and nobody knows for what"
            assert item.decode() not in found
            found[item.decode()] = event.decode()
    return found
