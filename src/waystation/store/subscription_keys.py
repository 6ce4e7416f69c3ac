"""The rows of the catalogue that belong to subscriptions; those of their record logs are the logs'.

All keys of a shard share its tag, so that every transition is one script.
"""

from __future__ import annotations

from waystation.store.key_kind import KeyKind

_SHARD = "{s.<project>.<subscription>.<generation>.<shard>}:"
_GENERATION = "with the generation of its subscription"
_EMPTY = "when it is empty"
_SUBSCRIPTION = "{sub.<project>.<subscription>}:"

SUBSCRIPTION_KEYS = (
    KeyKind(
        pattern="waystation.{delivery}",
        type="sorted set",
        content="delivery node → when it last said that it is there, in ms",
        writer="subscriptions: member_beat; a node that stops takes itself off",
        dies="10 s after the last node",
    ),
    KeyKind(
        pattern="waystation.{delivery}",
        type="pub/sub",
        content="hint for delivery nodes: one came or went, a shard is free, a definition changed",
        writer="subscriptions: member_beat, placement.py, lifecycle.py",
        dies="at once",
    ),
    KeyKind(
        pattern=_SUBSCRIPTION + "definition",
        type="hash",
        content="working copy of a subscription: `version`, `body` (JSON); the catalogue has the "
        "truth, and the secrets",
        writer="store: put",
        dies="never: versions of a name must not run backwards",
    ),
    KeyKind(
        pattern=_SUBSCRIPTION + "operations",
        type="hash",
        content="operation → state, beginning and end in ms, what is asked (JSON)",
        writer="subscriptions: operation_begin, operation_move",
        dies="with the subscription; an operation is forgotten some days after its end",
    ),
    KeyKind(
        pattern=_SUBSCRIPTION + "open",
        type="set",
        content="operations that have not ended",
        writer="subscriptions: operation_begin, operation_move",
        dies=_EMPTY,
    ),
    KeyKind(
        pattern=_SUBSCRIPTION + "rate",
        type="string",
        content="bucket of the rate: the time in ms up to which its permits were taken",
        writer="subscriptions: rate_take",
        dies="a second after the bucket is full again",
    ),
    KeyKind(
        pattern=_SUBSCRIPTION + "rate:<operation>",
        type="string",
        content="bucket of the rate of a redrive, likewise",
        writer="subscriptions: rate_take",
        dies="a second after the bucket is full again",
    ),
    KeyKind(
        pattern=_SHARD + "lease",
        type="hash",
        content="`epoch`, `owner`, `until_ms`: who delivers the shard",
        writer="leases.py",
        dies=_GENERATION,
    ),
    KeyKind(
        pattern=_SHARD + "head",
        type="hash",
        content="`incarnation`, `y` and `z` (last numbers in retry and dead letters), "
        "`retry_bytes`, `dead_bytes`, `retry_count`, `dead_count`, `alone` (dead letters of no "
        "parked group), `dropped`, `orphans` (due without a record), `ended` (endings that were "
        "seen), `frozen` (why), `opened_ms`",
        writer="subscriptions: establish, and every script after it",
        dies=_GENERATION,
    ),
    KeyKind(
        pattern=_SHARD + "pos",
        type="hash",
        content="`<storage number>.<partition>` → low: all below is acknowledged",
        writer="subscriptions: establish, commit, pass_over, reset",
        dies=_GENERATION,
    ),
    KeyKind(
        pattern=_SHARD + "acks:<storage number>.<partition>",
        type="sorted set",
        content="offsets above low that are acknowledged",
        writer="subscriptions: commit, pass_over; reset deletes it",
        dies=_EMPTY,
    ),
    KeyKind(
        pattern=_SHARD + "groups",
        type="hash",
        content="group → its entry, a line of words; a clean group has none",
        writer="subscriptions: commit, follow, redrive, skip, purge",
        dies=_EMPTY,
    ),
    KeyKind(
        pattern=_SHARD + "retry",
        type="hash",
        content="number → packed record of a message that is tried again, or waits behind one",
        writer="subscriptions: commit, follow, skip, purge",
        dies=_EMPTY,
    ),
    KeyKind(
        pattern=_SHARD + "dead",
        type="hash",
        content="number → packed record of a dead letter",
        writer="subscriptions: commit, follow, skip, purge",
        dies=_EMPTY,
    ),
    KeyKind(
        pattern=_SHARD + "rnext",
        type="hash",
        content="number in retry → number of the next of its group",
        writer="subscriptions: commit, follow, skip, purge",
        dies=_EMPTY,
    ),
    KeyKind(
        pattern=_SHARD + "dnext",
        type="hash",
        content="number of a dead letter → number of the next of its group",
        writer="subscriptions: commit, follow, skip, purge",
        dies=_EMPTY,
    ),
    KeyKind(
        pattern=_SHARD + "due",
        type="sorted set",
        content="members of heads that wait → when they are due, in ms",
        writer="subscriptions: commit, follow, give_back, open_shard, redrive, skip, purge; due",
        dies=_EMPTY,
    ),
    KeyKind(
        pattern=_SHARD + "taken",
        type="sorted set",
        content="members that somebody works on → end of the lease in ms; of the owner itself: the "
        "number of its call, below 0",
        writer="subscriptions: due, commit, take, renew; give_back, open_shard, skip, purge, reset",
        dies=_EMPTY,
    ),
    KeyKind(
        pattern=_SHARD + "tokens",
        type="hash",
        content="member → token of its take",
        writer="subscriptions: take; commit, skip, purge, reset",
        dies=_EMPTY,
    ),
    KeyKind(
        pattern=_SHARD + "failed",
        type="sorted set",
        content="`<number> <group>` of parked heads, `<number>` of dead letters that stand alone → "
        "when they failed, in ms",
        writer="subscriptions: commit, follow, redrive, skip, purge",
        dies=_EMPTY,
    ),
    KeyKind(
        pattern=_SHARD + "ready",
        type="list",
        content="members that are offered to other workers than the owner",
        writer="subscriptions: offer; take, skip, purge, reset",
        dies=_EMPTY,
    ),
    KeyKind(
        pattern=_SHARD + "ended",
        type="list",
        content="`<member> <state of its group>` of what other workers have settled",
        writer="subscriptions: commit, skip, purge; offer",
        dies=_EMPTY,
    ),
    KeyKind(
        pattern=_SHARD + "ops",
        type="hash",
        content="`<operation>` → what is asked; `<operation>:<word>` → how far it is here",
        writer="subscriptions: enlist, progress, redrive, skip, purge, commit",
        dies="when it is empty: an operation is forgotten some days after its end",
    ),
    KeyKind(
        pattern=_SHARD + "alone",
        type="hash",
        content="number of a dead letter that stands alone → operation that redrives it",
        writer="subscriptions: redrive; commit",
        dies=_EMPTY,
    ),
    KeyKind(
        pattern=_SHARD + "due",
        type="pub/sub",
        content="hint for the owner: something is due earlier than before, or an operation came",
        writer="subscriptions: whatever makes a head due; enlist, reset, freeze",
        dies="at once",
    ),
)
