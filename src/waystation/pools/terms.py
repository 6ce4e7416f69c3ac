"""What the scripts of a pool are told first: what holds for this call."""

from __future__ import annotations

from functools import lru_cache

import msgspec

from waystation.pools.states import Assignment


class Terms(msgspec.Struct, frozen=True, kw_only=True):
    """The terms of a call; options of the definition hold from the next call on."""

    #: A worker is stale, if for longer than this it did nothing while a message waited.
    stale_ms: int = 15_000
    policy: Assignment = "round_robin"
    #: How often a message is tried; then it is a dead letter.
    attempts: int = 5
    keys_max: int = 1_000_000
    messages_max: int = 1_000_000
    bytes_max: int | None = None
    dead_max: int = 10_000
    #: How much later an agent is stale for each key that it goes round.
    agent_key_ms: int = 500
    workers_max: int = 500
    taken_max: int = 500
    #: Recording policy and key of the record log, separated by a space; empty: no record log.
    record: str = ""

    @property
    def argument(self) -> str:
        """As the first argument of a script; the include `pool` reads it."""
        return _argument(self)


@lru_cache(maxsize=1024)
def _argument(terms: Terms) -> str:
    # Kept: it is the same for every call of a pool, and takes longer than to look it up.
    words = (
        terms.stale_ms,
        terms.policy,
        terms.attempts,
        terms.keys_max,
        terms.messages_max,
        "-" if terms.bytes_max is None else terms.bytes_max,
        terms.dead_max,
        terms.agent_key_ms,
        terms.workers_max,
        terms.taken_max,
        terms.record,
    )
    return " ".join(map(str, words)).rstrip()
