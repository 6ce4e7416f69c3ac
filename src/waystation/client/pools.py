"""What clients get to see of pools: definitions, workers, keys, dead letters; and what they send.

Times are milliseconds since 1970; 0 where there is none.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal, TypedDict

import msgspec

from waystation.client.parcels import NewMessage, pack
from waystation.errors import InvalidInputError
from waystation.runtime.ids import IdSource, require_name
from waystation.runtime.json_values import encode_json
from waystation.types.common import Record
from waystation.types.message import JsonMessage

PATH = "/v1/pools"
BATCH_FORM = "application/vnd.waystation.batch+json"
#: What a station takes in one request.
BATCH_MAX = 100


class PoolOptions(TypedDict, total=False):
    """What a user decides about a pool; what is left out stays, or is as by default."""

    #: How a worker is chosen for a key that has none.
    assignment: Literal["round_robin", "least_loaded", "consistent_hash"]
    #: A worker that did nothing for longer, while a message waited that long, loses its keys.
    stale_seconds: float
    #: A message that a worker has taken, and says nothing of for this long, is given out again.
    lease_seconds: float
    #: How often a message is tried before it is a dead letter, and how long apart.
    attempts: int
    first_seconds: float
    max_seconds: float
    #: A key without messages for this long is forgotten; None: never.
    key_retention_seconds: float | None
    worker_forget_seconds: float
    #: How long a message id is remembered.
    dedup_seconds: float
    keys_max: int
    messages_max: int
    max_bytes: int | None
    dead_max: int
    #: Whether agents with the redis-events plugin serve it.
    mirror: bool
    agent_key_ms: int
    #: Whether the agents of a mirrored pool answer messages that carry `txn_id`.
    agents_answer: bool
    #: Parts of the messages that history keeps; `headers` is all but the message itself.
    record: Record


class Pool(msgspec.Struct, frozen=True, kw_only=True):
    """A pool as it is now."""

    name: str
    version: int
    options: dict[str, Any]
    created_ms: int


class PoolPage(msgspec.Struct, frozen=True, kw_only=True):
    """One page of a list of pools."""

    pools: list[Pool]
    cursor: str


class PoolWorkerInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A worker, with its load."""

    uid: str
    #: live, silent, draining, evicted or leaving.
    state: str
    #: native or agent.
    kind: str
    keys: int
    pending: int
    taken: int
    #: None: it was never heard of.
    last_access_ms: int | None
    registered_ms: int


class PoolStanding(msgspec.Struct, frozen=True, kw_only=True):
    """What a pool holds, and its workers."""

    now_ms: int
    #: Rises with every change of the map.
    version: int
    keys: int
    pending: int
    #: Of these, what waits for a worker.
    waiting: int
    oldest_wait_ms: int
    bytes: int
    dead: int
    #: Dead letters that made room for newer ones.
    dropped: int
    workers: list[PoolWorkerInfo]


class PoolKey(msgspec.Struct, frozen=True, kw_only=True):
    """A recipient key in the map."""

    key: str
    #: waiting, idle, pending, taken or delayed.
    state: str
    #: `-`: nobody.
    owner: str
    epoch: int
    pending: int
    since_ms: int
    reason: str


class PoolKeyPage(msgspec.Struct, frozen=True, kw_only=True):
    """One page of the map."""

    keys: list[PoolKey]
    cursor: str


class Assigned(msgspec.Struct, frozen=True, kw_only=True):
    """Who has a key."""

    key: str
    owner: str
    epoch: int


class ShownAnswer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An answer as a station tells it."""

    data: msgspec.Raw = msgspec.Raw()
    text: str | None = None
    base64: str | None = None
    content_type: str = ""

    @property
    def content(self) -> Any:
        """JSON decoded, text, else bytes."""
        if bytes(self.data):
            return msgspec.json.decode(self.data)
        if self.text is not None:
            return self.text
        return msgspec.convert(self.base64 or "", bytes)


class Sent(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a message that was sent."""

    id: str
    #: `full`: the pool has no room, it was not taken.
    outcome: Literal["added", "duplicate", "full"]
    number: int
    #: Its worker; `-`: it waits for one.
    owner: str
    epoch: int
    #: Messages of its key that are not settled.
    pending: int
    #: What the worker answered; None: nothing, or not in time.
    answer: ShownAnswer | None = None


def not_sent(message_id: str) -> Sent:
    """Return the result for a message that the pool had no room for."""
    return Sent(id=message_id, outcome="full", number=0, owner="-", epoch=0, pending=0)


class SentBatch(msgspec.Struct, frozen=True, kw_only=True):
    """The results of one request."""

    results: list[Sent]


class PoolReason(msgspec.Struct, frozen=True, kw_only=True):
    """Why a recipient key is where it is."""

    code: str
    text: str
    facts: dict[str, Any]


class PoolDeadLetter(msgspec.Struct, frozen=True, kw_only=True):
    """A message that no worker could settle."""

    number: int
    key: str
    cause: str
    tries: int
    crashes: int
    enqueued_ms: int
    failed_ms: int
    message: JsonMessage


class PoolDeadLetterPage(msgspec.Struct, frozen=True, kw_only=True):
    """One page of dead letters."""

    dead_letters: list[PoolDeadLetter]
    cursor: str


class Count(msgspec.Struct, frozen=True, kw_only=True):
    """How many."""

    count: int


class Drained(msgspec.Struct, frozen=True, kw_only=True):
    """How many messages a worker still has."""

    taken: int


# -- Requests --------------------------------------------------------------------------------


def path_of(name: str, *parts: str) -> str:
    """The path of a pool, or of something that it has."""
    require_name(name, field="pool")
    return "/".join([PATH, name, *parts])


def batch_of(messages: Iterable[tuple[str, NewMessage]], identity: IdSource) -> bytes:
    """The body of a request that sends messages, each to its recipient key."""
    parts = []
    for key, message in messages:
        if message.group is not None or message.not_before is not None:
            raise InvalidInputError("In a pool the key is the group, and nothing is delayed.")
        body = pack(message, codec=None, identity=identity).body
        parts.append(b'{"key":%b,%b' % (encode_json(key), body[1:]))
    return b'{"messages":[%b]}' % b",".join(parts)


def selection_of(numbers: Sequence[int] | None) -> bytes:
    """Which dead letters; None: all of them."""
    asked = {"all": True} if numbers is None else {"numbers": list(numbers)}
    return encode_json(asked)
