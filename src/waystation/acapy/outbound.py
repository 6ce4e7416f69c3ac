"""A list that the plugin writes, read so that nothing is lost: what is taken stays until settled.

The plugin pops a message and then works on it, so a crash costs the message. Here it is moved, in
one script, to a place beside the list, under a lease: whoever dies leaves it there, and it comes
again. At least once: one whose settlement was lost comes again too.
"""

from __future__ import annotations

import re

import msgspec

from waystation.errors import InvalidInputError
from waystation.store import Store, script

_TAKE = script(__package__, "list_take")
_SETTLE = script(__package__, "list_settle")

#: A reply with more than this, and one message, is not asked for.
TAKE_BYTES_MAX = 4 * 1_048_576
#: Braces would give what lies beside the list another slot than the list has.
_LIST = re.compile(r"[^{}\s]{1,512}")


class TakenMessage(msgspec.Struct, frozen=True):
    """A message that is ours until its lease ends."""

    #: Of the list; every message that is taken has another one.
    number: int
    raw: bytes


def check_list_name(name: str) -> str:
    """The name of a list, if all that belongs to it can lie in its slot."""
    if not _LIST.fullmatch(name):
        raise InvalidInputError(f"{name[:80]!r} cannot be the name of a list.", field="list")
    return name


class OutboundQueue:
    """One list, and beside it what was taken off it."""

    def __init__(self, store: Store, name: str) -> None:
        self.name = check_list_name(name)
        self._store = store
        tag = f"{{{name}}}"
        self._keys = [name, f"{tag}.leases", f"{tag}.taken"]
        self._number = f"{tag}.number"

    def __repr__(self) -> str:
        return f"<OutboundQueue {self.name}>"

    async def take(self, most: int, lease_ms: int) -> list[TakenMessage]:
        """The first messages of the list; before them those whose lease is over."""
        keys = [*self._keys, self._number]
        reply = await self._store.run(_TAKE, keys, (most, lease_ms, TAKE_BYTES_MAX))
        return [TakenMessage(int(reply[i]), reply[i + 1]) for i in range(0, len(reply), 2)]

    async def done(self, number: int) -> None:
        """Lets go of a message for good."""
        await self._store.run(_SETTLE, self._keys, (number, "done"))

    async def back(self, number: int) -> None:
        """Gives a message back to the front of the list."""
        await self._store.run(_SETTLE, self._keys, (number, "back"))
