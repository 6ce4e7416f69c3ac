"""A list that the plugin writes, read so that nothing is lost: what is taken stays until settled.

The plugin pops a message and then works on it, so a crash costs the message. Here it is moved, in
one script, to a place beside the list, under a lease: whoever dies leaves it there, and it comes
again. At least once: one whose settlement was lost comes again too.
"""

from __future__ import annotations

import msgspec

from waystation.errors import InvalidInputError
from waystation.store.client import Store
from waystation.store.keys import key_beside
from waystation.store.scripts import script

_TAKE = script(__package__, "list_take")
_SETTLE = script(__package__, "list_settle")

#: A reply with more than this, and one message, is not asked for.
TAKE_BYTES_MAX = 4 * 1_048_576
_NAME_BYTES_MAX = 512


class TakenMessage(msgspec.Struct, frozen=True):
    """A message that is ours until its lease ends."""

    #: Of the list; every message that is taken has another one.
    number: int
    raw: bytes


def check_list_name(name: str) -> str:
    """Return the name of a list. Raise InvalidInputError if no key can be put beside the list."""
    if not name.isprintable() or not 0 < len(name.encode()) <= _NAME_BYTES_MAX:
        raise InvalidInputError(
            f"The name of a list has 1 to {_NAME_BYTES_MAX} bytes of printable letters, not"
            f" {name[:80]!r}.",
            field="list",
        )
    try:
        key_beside(name, "taken")
    except ValueError as error:
        raise InvalidInputError(str(error), field="list") from error
    return name


class OutboundQueue:
    """One list, and beside it what was taken off it."""

    def __init__(self, store: Store, name: str) -> None:
        self.name = check_list_name(name)
        self._store = store
        self._keys = [name, key_beside(name, "leases"), key_beside(name, "taken")]
        self._number = key_beside(name, "number")

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
