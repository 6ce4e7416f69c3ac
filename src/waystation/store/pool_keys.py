"""The rows of the catalogue that belong to pools.

All keys of a pool share its tag, so that every change of a key, its worker and its messages is one
script. A worker `-` is nobody, to whom belongs what waits for a worker.
"""

from __future__ import annotations

from waystation.store.key_kind import KeyKind

_POOL = "{p.<project>.<pool>}:"
_EMPTY = "when it is empty"
_DELETED = "with the pool"
_ALL = "pools: every script that moves keys"

POOL_KEYS = (
    KeyKind(
        pattern="{pool.<project>.<pool>}:definition",
        type="hash",
        content="working copy of a pool: `version`, `body` (JSON); the catalogue has the truth",
        writer="store: put",
        dies="never: versions of a name must not run backwards",
    ),
    KeyKind(
        pattern=_POOL + "head",
        type="hash",
        content="last `number`, `epoch` and `session`, `version` of the map, `iterator` (the "
        "worker that was picked last), `messages`, `bytes`, `dropped`, `opened_ms`, `closed`, "
        "`incarnation`, `former` (last number of the one before), `mirrored`, `observed_ms` (when "
        "agents were looked at last)",
        writer="pools: open_pool, and every script after it",
        dies="never: counters of a name must not run backwards",
    ),
    KeyKind(
        pattern=_POOL + "workers",
        type="hash",
        content="worker → `<state> <session> <kind> <nonce> <registered ms> <last token>`",
        writer="pools: register, drain, leave, take; whatever evicts",
        dies=_EMPTY,
    ),
    KeyKind(
        pattern=_POOL + "seen",
        type="sorted set",
        content="worker → its last access in ms; one that is missing had none",
        writer="pools: register, beat, take, ack, nack, renew; leave",
        dies=_EMPTY,
    ),
    KeyKind(
        pattern=_POOL + "accesses",
        type="hash",
        content="agent → its last access as it wrote it, in its own time",
        writer="pools: observe; leave",
        dies=_EMPTY,
    ),
    KeyKind(
        pattern="{waystation.mirror}:pool",
        type="string",
        content="`<project>.<pool> <since ms>`: the pool that agents serve",
        writer="pools: claim_mirror, release_mirror",
        dies="with that pool",
    ),
    KeyKind(
        pattern=_POOL + "live",
        type="sorted set",
        content="workers that get keys, by name",
        writer="pools: whatever a worker does; drain, leave, sweep, what evicts",
        dies=_EMPTY,
    ),
    KeyKind(
        pattern=_POOL + "ring",
        type="sorted set",
        content="`<1 to 64> <worker>` of live workers → a point of the consistent hash",
        writer="as `live`",
        dies=_EMPTY,
    ),
    KeyKind(
        pattern=_POOL + "load",
        type="sorted set",
        content="worker → 2²⁰ for each unsettled message of its keys + 1 for each key",
        writer="pools: enqueue, ack, nack; what moves or forgets keys",
        dies=_DELETED,
    ),
    KeyKind(
        pattern=_POOL + "keys",
        type="hash",
        content="recipient key → `<worker> <epoch> <token> <tries> <crashes> <since ms> <reason>`",
        writer=_ALL + "; enqueue, take, ack, nack",
        dies=_EMPTY,
    ),
    KeyKind(
        pattern=_POOL + "keys:<worker>",
        type="sorted set",
        content="recipient keys of a worker → ms of the last message",
        writer=_ALL + "; enqueue, sweep",
        dies=_EMPTY,
    ),
    KeyKind(
        pattern=_POOL + "ready:<worker>",
        type="sorted set",
        content="recipient keys of which a message can be taken → since when it waits there, or "
        "from when on it may be",
        writer=_ALL + "; enqueue, ack, nack, take",
        dies=_EMPTY,
    ),
    KeyKind(
        pattern=_POOL + "taken:<worker>",
        type="sorted set",
        content="recipient keys of which a message is taken → end of its lease in ms",
        writer="pools: take, ack, nack, renew; what frees",
        dies=_EMPTY,
    ),
    KeyKind(
        pattern=_POOL + "m:<recipient key>",
        type="list",
        content="messages `<number> <enqueued ms> <packed envelope>`, the first is the next; "
        "number 0: one that somebody else put into the list of an agent",
        writer="pools: enqueue, ack, nack, observe",
        dies=_EMPTY,
    ),
    KeyKind(
        pattern=_POOL + "id:<message id of a pool>",
        type="string, integer",
        content="number of the message, for deduplication",
        writer="pools: enqueue",
        dies="when the window of the pool has passed",
    ),
    KeyKind(
        pattern=_POOL + "dead",
        type="hash",
        content="number → dead letter: `<enqueued ms> <tries> <crashes> <bytes of the key> <bytes "
        "of the cause> `, then key, cause and packed envelope",
        writer="pools: nack; what counts a crash",
        dies=_EMPTY,
    ),
    KeyKind(
        pattern=_POOL + "failed",
        type="sorted set",
        content="number of a dead letter → when it became one, in ms",
        writer="as `dead`",
        dies=_EMPTY,
    ),
    KeyKind(
        pattern=_POOL + "answer:<id of an answer>",
        type="string",
        content="content type, a line break, and the answer of a worker to a message",
        writer="pools: answer; whoever waited for it deletes it",
        dies="after 60 s",
    ),
    KeyKind(
        pattern=_POOL + "answer",
        type="pub/sub",
        content="id of an answer that has come",
        writer="pools: answer",
        dies="at once",
    ),
    KeyKind(
        pattern=_POOL + "ready:<worker>",
        type="pub/sub",
        content="hint for a worker: it can take something",
        writer="pools: whatever makes a message ready where none was",
        dies="at once",
    ),
)
