"""Why a recipient key, and what waits for it, is where it is: a stable code and a sentence."""

from __future__ import annotations

from collections import Counter
from typing import Any, Literal

import msgspec

from waystation.pools.definition import Pool
from waystation.pools.held import KeyLook
from waystation.pools.names import NOBODY
from waystation.pools.pools import Pools
from waystation.pools.states import KeyState, WorkerKind, WorkerState

Code = Literal[
    "agent",
    "delayed",
    "draining",
    "evicted",
    "idle",
    "no_worker",
    "ready",
    "taken",
    "unknown",
]
#: Why a worker has a key, for the end of a sentence.
_REASONS = {
    "new": "it was the key's first",
    "stale": "the one before was stale",
    "drained": "the one before drained",
    "left": "the one before left",
    "adopted": "the key had waited for a worker",
    "asked": "somebody asked for it",
}


class Why(msgspec.Struct, frozen=True, kw_only=True):
    """Why."""

    code: Code
    text: str
    #: What the sentence is made of, by name.
    facts: dict[str, Any] = {}


async def why(pools: Pools, project: str, name: str, key: str) -> Why:
    """Tells of a recipient key of a pool."""
    pool = await pools.get(project, name)
    terms = pools.terms(pool)
    look = await pools.assignments.look_at(pool.place, terms, key)
    if look is None:
        text = "The pool does not know the key: its next message is given to a worker."
        return Why(code="unknown", text=text)
    if look.owner == NOBODY and look.pending:
        around = await pools.assignments.look(pool.place, terms)
        return _no_worker(look, Counter(each.state.value for each in around.workers))
    return _owned(pool, look)


def _no_worker(look: KeyLook, states: Counter[str]) -> Why:
    there = ", ".join(f"{count} {state}" for state, count in sorted(states.items()))
    text = (
        f"{_messages(look)} for a worker, and none is live"
        f" ({there or 'none is registered'}): whoever registers gets the key."
    )
    return Why(code="no_worker", text=text, facts={**_facts(look), "workers": dict(states)})


def _owned(pool: Pool, look: KeyLook) -> Why:
    facts = _facts(look)
    if look.state is KeyState.IDLE:
        if look.owner == NOBODY:
            return Why(code="idle", text="Nothing waits, and nobody has the key.", facts=facts)
        since = _ago(look.now_ms - look.since_ms)
        because = _REASONS.get(look.reason, look.reason)
        text = f"Nothing waits. Worker {look.owner} has the key, {since}: {because}."
        return Why(code="idle", text=text, facts=facts)
    if look.worker in (WorkerState.DRAINING, WorkerState.EVICTED, WorkerState.LEAVING):
        return _moving(look, facts)
    if look.state is KeyState.TAKEN:
        facts |= {"lease_until_ms": look.due_ms, "attempts": pool.options.attempts}
        left = look.due_ms - look.now_ms
        lease = f"its lease ends in {_seconds(left)}" if left > 0 else "its lease is over"
        text = (
            f"Worker {look.owner} works on the first of {look.pending}"
            f" (try {look.tries + 1} of {pool.options.attempts}); {lease}."
        )
        return Why(code="taken", text=text, facts=facts)
    if look.state is KeyState.DELAYED:
        wait = _seconds(look.due_ms - look.now_ms)
        facts |= {"due_ms": look.due_ms, "attempts": pool.options.attempts}
        text = (
            f"The first of {look.pending} is tried again in {wait}"
            f" (try {look.tries + 1} of {pool.options.attempts}), by worker {look.owner}."
        )
        return Why(code="delayed", text=text, facts=facts)
    return _ready(pool, look, facts)


def _moving(look: KeyLook, facts: dict[str, Any]) -> Why:
    if look.worker is WorkerState.EVICTED:
        text = f"Worker {look.owner} was evicted; its keys are moving to others."
        return Why(code="evicted", text=text, facts=facts)
    taken = look.state is KeyState.TAKEN
    then = "when it has settled what it has taken" if taken else "now"
    text = f"Worker {look.owner} is {look.worker}; the key goes to another {then}."
    return Why(code="draining", text=text, facts=facts)


def _ready(pool: Pool, look: KeyLook, facts: dict[str, Any]) -> Why:
    heard = "was never heard of"
    if look.last_access_ms is not None:
        heard = f"was heard of {_ago(look.now_ms - look.last_access_ms)}"
    if look.kind is WorkerKind.AGENT:
        text = f"{_messages(look)} in the list of agent {look.owner}, which {heard}."
        return Why(code="agent", text=text, facts=facts)
    text = f"{_messages(look)} to be taken by worker {look.owner}, which {heard}"
    if look.last_access_ms is not None:
        # As the scripts have it, but for what its other keys may add.
        since = max(look.last_access_ms, look.due_ms)
        left = since + round(pool.options.stale_seconds * 1000) - look.now_ms
        facts["stale_in_ms"] = max(0, left)
        text += f"; if it does nothing, it is stale in {_seconds(max(0, left))}"
    return Why(code="ready", text=f"{text}.", facts=facts)


def _facts(look: KeyLook) -> dict[str, Any]:
    return {
        "owner": look.owner,
        "epoch": look.epoch,
        "since_ms": look.since_ms,
        "reason": look.reason,
        "pending": look.pending,
        "oldest_ms": look.oldest_ms,
        "tries": look.tries,
        "crashes": look.crashes,
        "last_access_ms": look.last_access_ms,
        "worker": None if look.worker is None else look.worker.value,
    }


def _messages(look: KeyLook) -> str:
    waits = "message waits" if look.pending == 1 else "messages wait"
    return f"{look.pending} {waits}, the first for {_seconds(look.now_ms - look.oldest_ms)},"


def _ago(ms: int) -> str:
    return f"{_seconds(ms)} ago"


def _seconds(ms: int) -> str:
    return f"{ms / 1000:.1f} s" if ms < 60_000 else f"{ms // 60_000} min"
