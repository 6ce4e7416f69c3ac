"""The mirror: the plugin's own keys and lists, in the plugin's formats, from which agents work.

What a pool has under its tag is the truth; this is a copy for those who cannot read it. Each key is
in a slot of its own, written by one script there with the version of the map that it was made from:
of two writers the one with the later truth stays. Nothing here decides anything.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TypeVar

from waystation.pools.mirrored import Seen
from waystation.store.client import Store
from waystation.store.keys import key_beside
from waystation.store.scripts import script

_PUT = script(__package__, "mirror_put")
_SET = script(__package__, "mirror_set")
_PUSH = script(__package__, "mirror_push")
_LOOK = script(__package__, "mirror_look")

#: Agent → its recipient keys. An agent that finds itself missing here waits.
LISTS = "uid_recip_keys_map"
#: Recipient key → agent.
OWNERS = "recip_key_uid_map"
#: `<agent>_<recipient key>` → messages that wait.
PENDING = "uid_recip_key_pending_msg_count"
#: Agent → when it got a message, in its own time.
ACCESSES = "uid_last_access_map"
#: Place in the names of `LISTS` at which a mediator goes on.
ITERATOR = "round_robin_iterator"

#: Of a version that was never written.
NO_VERSION = -1
_FIELDS_MAX = 500
_PAGE = 1000

_T = TypeVar("_T")


def version_of(name: str) -> str:
    """What lies beside one of the plugin's keys: the version it was made from."""
    return f"{{{name}}}.version"


class Mirror:
    """Reads and writes the plugin's keys."""

    def __init__(self, store: Store, *, inbound: str) -> None:
        self._store = store
        #: The list of a recipient key is `<inbound>_<recipient key>`.
        self._inbound = inbound

    def __repr__(self) -> str:
        return f"<Mirror {self._inbound}>"

    # -- The maps ----------------------------------------------------------------------------

    async def lists(self) -> tuple[int, dict[str, bytes]]:
        """The lists of all agents as they are written, and the version that we wrote last."""
        # The version first: what is read then is that one, or what others made of it since.
        version = await self._store.call("GET", version_of(LISTS), repeatable=True)
        uids = await self._store.call("HKEYS", LISTS, repeatable=True)
        found: dict[str, bytes] = {}
        for some in _batches(uids):
            lists = await self._store.call("HMGET", LISTS, *some, repeatable=True)
            pairs = zip(some, lists, strict=True)
            found |= {_text(uid): each for uid, each in pairs if each is not None}
        return NO_VERSION if version is None else int(version), found

    async def accesses(self) -> dict[str, str]:
        """When each agent got a message last, as it wrote it."""
        words = await self._store.call("HGETALL", ACCESSES, repeatable=True)
        return {_text(words[i]): _text(words[i + 1]) for i in range(0, len(words), 2)}

    async def forget_accesses(self, uids: Sequence[str]) -> None:
        """Agents have gone: one that writes there after this has not."""
        if uids:
            await self._store.call("HDEL", ACCESSES, *uids, repeatable=True)

    async def owners(self, cursor: str, *, most: int) -> tuple[str, dict[str, str]]:
        """Some of the owners of keys, and the cursor of the rest; "0": there is none."""
        found: dict[str, str] = {}
        while True:
            command = ("HSCAN", OWNERS, cursor, "COUNT", _PAGE)
            after, words = await self._store.call(*command, repeatable=True)
            found |= {_text(words[i]): _text(words[i + 1]) for i in range(0, len(words), 2)}
            cursor = after.decode()
            if cursor == "0" or len(found) >= most:
                return cursor, found

    async def pending(self, fields: Sequence[str]) -> dict[str, str]:
        """Counts of waiting messages, as they are written."""
        found: dict[str, str] = {}
        for some in _batches(fields):
            counts = await self._store.call("HMGET", PENDING, *some, repeatable=True)
            pairs = zip(some, counts, strict=True)
            found |= {field: _text(count) for field, count in pairs if count is not None}
        return found

    async def write(
        self,
        name: str,
        version: int,
        fields: Mapping[str, str | bytes],
        gone: Sequence[str] = (),
    ) -> bool:
        """Writes and deletes fields of one of the maps; false: a later version is there."""
        keys, rest, removed = [name, version_of(name)], list(fields.items()), list(gone)
        while True:
            some, rest = rest[:_FIELDS_MAX], rest[_FIELDS_MAX:]
            less, removed = removed[:_FIELDS_MAX], removed[_FIELDS_MAX:]
            words: list[str | bytes | int] = [version, len(less), *less]
            for pair in some:
                words += pair
            if not await self._store.run(_PUT, keys, words):
                return False
            if not rest and not removed:
                return True

    async def write_iterator(self, version: int, place: int) -> bool:
        """Says where a mediator goes on; false: a later version is there."""
        keys = [ITERATOR, version_of(ITERATOR)]
        return bool(await self._store.run(_SET, keys, [version, place]))

    # -- The lists of messages ---------------------------------------------------------------

    def can_have(self, key: str) -> bool:
        """Return False if braces in the key keep its list and its marker from sharing a slot."""
        try:
            self._names(key)
        except ValueError:
            return False
        return True

    async def push(self, key: str, messages: Sequence[tuple[int, bytes]]) -> int:
        """Puts messages, with their numbers, into a key's list; the last that it has by then."""
        words = [word for each in messages for word in each]
        return int(await self._store.run(_PUSH, self._names(key), words))

    async def look(self, key: str) -> Seen:
        """What is left in a key's list."""
        length, pushed, gone = await self._store.run(_LOOK, self._names(key), [])
        return Seen(key, int(gone), int(pushed), length)

    async def forget(self, key: str) -> None:
        """The pool does not know the key any more; of what it gets next the numbers are higher."""
        await self._store.call("UNLINK", self._names(key)[1], repeatable=True)

    def _names(self, key: str) -> list[str]:
        name = f"{self._inbound}_{key}"
        return [name, key_beside(name, "pushed")]


def _batches(items: Sequence[_T]) -> Iterator[Sequence[_T]]:
    return (items[i : i + _FIELDS_MAX] for i in range(0, len(items), _FIELDS_MAX))


def _text(word: bytes) -> str:
    return word.decode(errors="backslashreplace")
