"""Public types of messages: receipts and the durability that they state."""

from __future__ import annotations

from typing import Literal, final

import msgspec

#: `memory`: the store confirmed the message, which a crash of the store's machine can lose.
#: `disk`: the store wrote it to disk before it confirmed.
Durability = Literal["memory", "disk"]


@final
class Receipt(msgspec.Struct, frozen=True, kw_only=True, gc=False, rename={"ms": "time_ms"}):
    """Confirmation that a message is stored, with its location."""

    id: str
    #: Index of the storage topic.
    storage: int
    partition: int
    offset: int
    #: Time of the append in milliseconds since 1970, by the store's clock.
    ms: int
    #: Whether the id was produced before within the deduplication window. Nothing was written;
    #: the location is that of the first message.
    duplicate: bool = False
    durability: Durability = "memory"
