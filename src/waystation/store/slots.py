"""Slots of a cluster: which of the 16,384 a key or a command belongs to."""

from __future__ import annotations

from binascii import crc_hqx

SLOTS = 16_384

#: Where the first key stands, of commands where it is not the second word.
_KEY_AT = {
    b"EVAL": 3,
    b"EVALSHA": 3,
    b"MEMORY": 2,
    b"OBJECT": 2,
    b"XGROUP": 2,
    b"XINFO": 2,
}
#: Commands of a server, not of a key: any node can answer them.
_KEYLESS = frozenset(
    b"BGREWRITEAOF CLIENT CLUSTER COMMAND CONFIG DBSIZE DEBUG ECHO FLUSHALL FLUSHDB FUNCTION INFO "
    b"KEYS LATENCY PING SCAN SCRIPT SLOWLOG TIME WAIT WAITAOF".split()
)


def slot_of(key: str | bytes) -> int:
    """The slot of a key: the CRC16 of its first tag, of the whole where it has none."""
    name = key.encode() if isinstance(key, str) else key
    start = name.find(b"{") + 1
    if start:
        end = name.find(b"}", start)
        if end > start:
            name = name[start:end]
    return crc_hqx(name, 0) % SLOTS


def key_beside(name: str, what: str) -> str:
    """Return the name of a key in the slot of `name`, for data that belongs to it.

    A name with a hash tag is extended and keeps its tag. Any other name becomes the tag itself.
    Raise ValueError if that is not possible: a closing brace would end the tag early.
    """
    if _tag_of(name):
        return f"{name}.{what}"
    if "}" in name:
        raise ValueError(f"The name {name!r} has a closing brace without a hash tag.")
    return f"{{{name}}}.{what}"


def _tag_of(name: str) -> str:
    """Return the hash tag of a name; empty if its slot is that of the whole name."""
    _, brace, rest = name.partition("{")
    tag, end, _ = rest.partition("}")
    return tag if brace and end else ""


def slot_of_command(packed: bytes) -> int | None:
    """The slot of a packed command; None: it belongs to no key. A hint belongs to its topic's."""
    command = _word(packed, 0).upper()
    if command in _KEYLESS:
        return None
    at = _KEY_AT.get(command, 1)
    if at == 3 and _word(packed, 2) == b"0":
        return None
    return slot_of(_word(packed, at))


def _word(packed: bytes, wanted: int) -> bytes:
    """A word of a command as the wire has it: `*<words>`, then `$<bytes>` and the word, each."""
    at = packed.index(b"\n") + 1
    while True:
        end = packed.index(b"\r", at)
        length = int(packed[at + 1 : end])
        if not wanted:
            return packed[end + 2 : end + 2 + length]
        wanted -= 1
        at = end + 2 + length + 2
