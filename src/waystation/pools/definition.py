"""The definition of a pool: what a user decides, and what became of it.

The truth is in the catalogue. The store has a working copy, which every process reads.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from waystation.config import PoolConfig
from waystation.errors import InvalidInputError, PoolCannotAnswerError
from waystation.pools.names import Place
from waystation.pools.states import Assignment
from waystation.pools.terms import Terms
from waystation.types.common import Record

PoolState = Literal["active", "deleting", "deleted"]

#: A worker's load counts keys below, and messages above, this bound.
_KEYS_MAX = 2**20 - 1
_MESSAGES_MAX = 2**32
_BYTES_MAX = 2**53 - 1
_SECONDS_MAX = 30 * 86_400


class PoolOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a user decides about a pool, and may change."""

    #: How a worker is chosen for a key that has none.
    assignment: Assignment = "round_robin"
    #: A worker that did nothing for longer, while a message waited that long, loses its keys.
    stale_seconds: Annotated[float, Meta(ge=0.1, le=86_400)] = 15.0
    #: A message that a worker has taken, and says nothing of for this long, is given out again.
    lease_seconds: Annotated[float, Meta(ge=0.1, le=86_400)] = 30.0
    #: How often a message is tried before it is a dead letter.
    attempts: Annotated[int, Meta(ge=1, le=100)] = 5
    #: Before a message is tried again; doubled each time, up to the maximum.
    first_seconds: Annotated[float, Meta(ge=0, le=86_400)] = 1.0
    max_seconds: Annotated[float, Meta(ge=0, le=_SECONDS_MAX)] = 300.0
    #: A key without messages for this long is forgotten; None: never.
    key_retention_seconds: Annotated[float, Meta(ge=1, le=3650 * 86_400)] | None = 7 * 86_400.0
    #: A native worker without messages that was not heard of for this long is forgotten.
    worker_forget_seconds: Annotated[float, Meta(ge=1, le=3650 * 86_400)] = 3600.0
    #: How long a message id is remembered.
    dedup_seconds: Annotated[float, Meta(ge=1, le=7 * 86_400)] = 300.0
    keys_max: Annotated[int, Meta(ge=1, le=_KEYS_MAX)] = 1_000_000
    messages_max: Annotated[int, Meta(ge=1, le=_MESSAGES_MAX)] = 1_000_000
    max_bytes: Annotated[int, Meta(ge=1, le=_BYTES_MAX)] | None = None
    #: Dead letters that are kept; the oldest makes room for a newer one, and is counted.
    dead_max: Annotated[int, Meta(ge=1, le=1_000_000)] = 10_000
    #: Whether agents with the redis-events plugin serve it; one pool of a store at most.
    mirror: bool = False
    #: How much later an agent is stale for each key that it goes round: the plugin takes 400 ms for
    #: one without messages.
    agent_key_ms: Annotated[int, Meta(ge=0, le=10_000)] = 500
    #: Whether the agents of a mirrored pool answer messages that carry `txn_id`. The redis-events
    #: plugin does not: its agent stops for good at the first such message.
    agents_answer: bool = False
    #: Parts of the messages that history keeps: `full`, `headers` (all but the message) or `none`.
    record: Record = "full"


class Pool(msgspec.Struct, frozen=True, kw_only=True):
    """A pool as it is now."""

    project: str
    name: str
    version: int
    options: PoolOptions
    state: PoolState = "active"
    created_ms: int = 0
    #: Which of those that had the name it is: nothing of a former one concerns it.
    incarnation: int = 1

    @property
    def place(self) -> Place:
        """Where it has its keys."""
        return Place(self.project, self.name)

    @property
    def can_answer(self) -> bool:
        """True if the workers of the pool can answer a message."""
        return self.options.agents_answer or not self.options.mirror

    @property
    def lease_ms(self) -> int:
        """How long a worker may say nothing of a message."""
        return round(self.options.lease_seconds * 1000)

    def wait_ms(self, tries: int) -> int:
        """Before a message is tried again that was tried so often before."""
        options = self.options
        # A float has no more doublings than this.
        seconds = options.first_seconds * 2.0 ** min(tries, 100)
        return round(min(seconds, options.max_seconds) * 1000)

    def changed(self, **changes: object) -> Pool:
        """The next version."""
        return msgspec.structs.replace(self, version=self.version + 1, **changes)

    def terms(self, settings: PoolConfig, record: str = "") -> Terms:
        """Return the terms of the pool's scripts. `record` is the field of the terms."""
        return _terms(self.options, settings, record)


@lru_cache(maxsize=1024)
def _terms(options: PoolOptions, settings: PoolConfig, record: str) -> Terms:
    # Kept: it is the same for every call of a pool.
    return Terms(
        stale_ms=round(options.stale_seconds * 1000),
        policy=options.assignment,
        attempts=options.attempts,
        keys_max=options.keys_max,
        messages_max=options.messages_max,
        bytes_max=options.max_bytes,
        dead_max=options.dead_max,
        agent_key_ms=options.agent_key_ms,
        workers_max=settings.workers_max,
        taken_max=settings.taken_max,
        record=record,
    )


def check_options(options: PoolOptions) -> None:
    """Refuses what does not go together."""
    if options.first_seconds > options.max_seconds:
        raise InvalidInputError("The first wait is longer than the longest.", field="first_seconds")
    if options.agents_answer and not options.mirror:
        raise InvalidInputError(
            "agents_answer is an option of mirrored pools only.", field="agents_answer"
        )


def require_answers(pool: Pool) -> None:
    """Raise PoolCannotAnswerError if the workers of the pool cannot answer a message."""
    if not pool.can_answer:
        raise PoolCannotAnswerError(
            f"The agents of pool '{pool.name}' cannot answer messages.",
            field="wait",
            hint="Send without waiting for an answer. Set the option agents_answer of the pool only"
            " if its agents answer messages with `txn_id`; the redis-events plugin does not.",
        )


encode_pool = msgspec.json.Encoder().encode
decode_pool = msgspec.json.Decoder(Pool).decode
