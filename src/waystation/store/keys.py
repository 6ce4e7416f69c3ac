"""The catalogue of every key: pattern, type, content, who writes it, when it dies.

Keys that change together share one hash tag, the part in braces, so that one script may touch
them all on a cluster. `docs/reference/keys.md` is generated from `CATALOGUE`.

Channels have exactly the keys of DSPS, so that its data set can be taken over as it is.
The tag of a channel of project `default` is its name; another project's is `<project>.<channel>`,
which is unambiguous, since a name has no dot.
"""

from __future__ import annotations

import hashlib
import re

from waystation.store.acapy_keys import ACAPY_KEYS
from waystation.store.key_kind import KeyKind
from waystation.store.pool_keys import POOL_KEYS
from waystation.store.subscription_keys import SUBSCRIPTION_KEYS
from waystation.store.transaction_keys import TRANSACTION_KEYS

DEFAULT_PROJECT = "default"
#: Longer ids of tokens are kept as their hash.
_TOKEN_ID_MAX = 256

#: Hash of the stamp: version, dataset, cells, archive and more. See format.py.
FORMAT = "waystation.format"
#: Lease of the node that migrates the data set, in the slot of the format. See migration.py.
MIGRATION = "{waystation.format}.migration"
#: Sorted set: process -> when it was last there. See membership.py.
PROCESSES = "waystation.processes"
#: Hash: what an installation keeps to itself. See transactions/callbacks.py.
SECRETS = "waystation.{secrets}"
#: Hash: shift_ms, generation. Test mode only. See time_machine.py.
TIME = "waystation.time"
#: Hash: follower -> generation:seen_ms. Test mode only.
TIME_FOLLOWERS = "waystation.time.followers"


CATALOGUE = (
    KeyKind(
        pattern=FORMAT,
        type="hash",
        content="`version` of the data format, `dataset` id, `created_ms`, number of `cells`,"
        " name of the `archive`, reader of `history` once one has registered; after an accepted"
        " loss, `replaces`: ids of the lost data sets, newest first, and `accepted_ms`; on a"
        " cluster, number of `markers`",
        writer="format.py, once per data set and per accepted loss",
        dies="never",
    ),
    KeyKind(
        pattern="waystation.dataset.{<number of a marker>}",
        type="string",
        content="id of the data set and of those that it replaces; 64 keys, spread over all slots",
        writer="format.py, on a cluster only, once per data set and per accepted loss",
        dies="never",
    ),
    KeyKind(
        pattern=MIGRATION,
        type="hash",
        content="lease of the node that brings an older data set up to date",
        writer="migration.py: lease_acquire, while a data set is migrated",
        dies="never",
    ),
    KeyKind(
        pattern=PROCESSES,
        type="sorted set",
        content="process → when it last said that it is there, in ms",
        writer="membership.py: member_beat; a process that stops takes itself off",
        dies="10 s after the last process",
    ),
    KeyKind(
        pattern=SECRETS,
        type="hash",
        content="`callback`: 32 bytes that tokens of callbacks are made with",
        writer="transactions: callbacks, once per data set",
        dies="never",
    ),
    KeyKind(
        pattern=TIME,
        type="hash",
        content="`shift_ms` and `generation` of the time machine",
        writer="time_machine.py, test mode only",
        dies="with the test store",
    ),
    KeyKind(
        pattern=TIME_FOLLOWERS,
        type="hash",
        content="process → `generation:seen_ms`: who has followed a jump in time",
        writer="time_machine.py, test mode only",
        dies="with the test store",
    ),
    KeyKind(
        pattern="c.{<channel>}.clock",
        type="string, integer",
        content="clock of the newest message of the channel",
        writer="channels: publish, subscribe; fetch and ack extend it",
        dies="expire + 15 s after the last use, never before a cursor of the channel",
    ),
    KeyKind(
        pattern="c.{<channel>}.r.<subscriber>",
        type="string, integer",
        content="cursor: clock of the last message that the subscriber has acknowledged",
        writer="channels: subscribe, ack, seek, fetch over a gap; unsubscribe deletes it",
        dies="expire + 15 s after the last fetch or ack",
    ),
    KeyKind(
        pattern="c.{<channel>}.m.<clock>",
        type="string, JSON",
        content='message `{"id", "content"}`, the content byte for byte as it came',
        writer="channels: publish",
        dies="expire + 15 s after publish",
    ),
    KeyKind(
        pattern="c.{<channel>}.mid.<message id>",
        type="string, integer",
        content="clock of the message, for deduplication",
        writer="channels: publish",
        dies="expire + 15 s after publish",
    ),
    KeyKind(
        pattern="jwt.{<jti>}.revoke",
        type="string, integer",
        content="expiry of a revoked token, skew included, in seconds since the epoch; an id of "
        "over 256 letters is kept as `sha256:<hex>`",
        writer="channels: revoke",
        dies="at that expiry",
    ),
    KeyKind(
        pattern="<lane>.in",
        type="stream",
        content="outbox lane: inbox of what no one has tried yet; the item's name → what to send",
        writer="channels: publish; delivery: claim, discard",
        dies="when it is empty",
    ),
    KeyKind(
        pattern="<lane>.due",
        type="sorted set",
        content="outbox lane: item id → time of its next attempt in ms",
        writer="delivery: add, claim, renew, settle, redrive, discard; channels: publish",
        dies="when it is empty",
    ),
    KeyKind(
        pattern="<lane>.items",
        type="hash",
        content="outbox lane: item id → what to send; `.attempts`, `.cause`, `.token` beside it",
        writer="delivery: add, claim, settle, redrive, discard; channels: publish",
        dies="when it is empty",
    ),
    KeyKind(
        pattern="<lane>.failed",
        type="sorted set",
        content="outbox lane: item id → when it was given up; the newest 10,000",
        writer="delivery: settle, redrive, discard",
        dies="when it is empty",
    ),
    KeyKind(
        pattern="<lane>.untold",
        type="sorted set",
        content="outbox lane: failed item id → when somebody else is to tell the operator of it",
        writer="delivery: settle, claim, redrive, discard",
        dies="when it is empty",
    ),
    KeyKind(
        pattern="<lane>.gate",
        type="hash",
        content="outbox lane: `state` (`open`, or `closed` and its `epoch`); `dropped`, a count",
        writer="delivery: open, close, settle; channels: publish",
        dies="with its lane, a day after that was retired",
    ),
    KeyKind(
        pattern="<lane>.attempts",
        type="stream",
        content="outbox lane: records of the newest attempts, about 1,000",
        writer="delivery: settle",
        dies="7 days after the last attempt",
    ),
    KeyKind(
        pattern="waystation.{outbox}.lanes",
        type="sorted set",
        content="register of outbox lanes: lane → stamp of its registration",
        writer="delivery: register, retire",
        dies="when it is empty",
    ),
    KeyKind(
        pattern="waystation.{outbox}.stamp",
        type="string, integer",
        content="newest stamp of a registration: the time in ms, or one more than the last",
        writer="delivery: register",
        dies="never",
    ),
    KeyKind(
        pattern="delivery.{endpoints}.disabled",
        type="hash",
        content="endpoint → why and since when it is disabled, JSON",
        writer="delivery: disable, enable",
        dies="when it is empty",
    ),
    KeyKind(
        pattern="delivery.{endpoints}.held",
        type="hash",
        content="endpoint → when it may be asked again, in ms: it said `Retry-After`, or rests",
        writer="delivery: hold, fail, enable, survey",
        dies="when it is empty",
    ),
    KeyKind(
        pattern="delivery.{endpoints}.fails",
        type="hash",
        content="endpoint → `<failures in a row> <ms until which they count> <last attempt>`",
        writer="delivery: fail, enable, survey; a success deletes",
        dies="when it is empty",
    ),
    KeyKind(
        pattern="delivery.{endpoints}.repaired",
        type="sorted set",
        content="endpoint, scored by when an operator declared it repaired, in ms",
        writer="delivery: enable",
        dies="never; it keeps the declarations of an hour, 1,000 at most",
    ),
    KeyKind(
        pattern="delivery.{endpoints}.breakers",
        type="hash",
        content="node → `<ms until which it is valid> <endpoint → ms until its next probe, JSON>`",
        writer="delivery: breakers, survey",
        dies="when it is empty",
    ),
    KeyKind(
        pattern="delivery.{endpoints}.notices",
        type="stream",
        content="notices to the operator, the newest 1,000 or so, JSON",
        writer="delivery: disable, and whoever gives a delivery up",
        dies="never",
    ),
    KeyKind(
        pattern="<unit>:lease",
        type="hash",
        content="`epoch`, `owner` and `until_ms` of what one process does at a time",
        writer="leases: acquire, renew, release",
        dies="with its unit; the epoch must never run backwards",
    ),
    KeyKind(
        pattern="{<log>.<partition>}:log",
        type="stream",
        content="partition of a log: entries `<offset>-<ms>`, one field `m`, the packed message",
        writer="logs: append, trim",
        dies="with its log",
    ),
    KeyKind(
        pattern="{<log>.<partition>}:log:head",
        type="hash",
        content="`first`, `end`, `ms`, `bytes`, `dropped`, limits and their version, `sealed`,"
        " `warned_ms`, `watched` (somebody waits for the next), `unrecorded` (a count)",
        writer="logs: create, append, trim, seal, retain, watch",
        dies="with its log",
    ),
    KeyKind(
        pattern="{<log>.<partition>}:log:holds",
        type="hash",
        content="reader → the offset from which on it still needs everything; behind it the"
        " incarnation of the reader, where it has one",
        writer="logs: hold, release",
        dies="with its log",
    ),
    KeyKind(
        pattern="{<log>.<partition>}:log:id:<message id in its scope>",
        type="string",
        content="`<offset>-<ms>` of the message, for deduplication",
        writer="topics: append_once",
        dies="when the window of the topic has passed, or with its log",
    ),
    KeyKind(
        pattern="{t.<project>.<topic>}:topic",
        type="hash",
        content="working copy of a topic: `version`, `body` (JSON); the catalogue has the truth",
        writer="store: put",
        dies="never: versions of a name must not run backwards",
    ),
    KeyKind(
        pattern="waystation.logs",
        type="hash",
        content="register of logs: log → number of partitions",
        writer="logs: create, delete",
        dies="when it is empty",
    ),
    KeyKind(
        pattern="dsps.c.{<channel>}",
        type="pub/sub",
        content="wake-up hint for long polls; the payload means nothing",
        writer="channels: publish, seek, unsubscribe",
        dies="at once",
    ),
    KeyKind(
        pattern="waystation.{outbox}.lanes",
        type="pub/sub",
        content="wake-up hint for deliverers: a lane was registered",
        writer="delivery: register",
        dies="at once",
    ),
    KeyKind(
        pattern="<lane>.wake",
        type="pub/sub",
        content="wake-up hint for deliverers: something may be due in the lane",
        writer="delivery: add, redrive; channels: publish",
        dies="at once",
    ),
    *TRANSACTION_KEYS,
    *SUBSCRIPTION_KEYS,
    *POOL_KEYS,
    *ACAPY_KEYS,
)


def data_set_marker(number: int) -> str:
    """Return the key of a marker of the data set, on a cluster."""
    return f"waystation.dataset.{{{number}}}"


def channel_tag(project: str, channel: str) -> str:
    """The hash tag of a channel, with its braces."""
    return f"{{{channel}}}" if project == DEFAULT_PROJECT else f"{{{project}.{channel}}}"


def channel_clock(tag: str) -> str:
    """Clock of a channel."""
    return f"c.{tag}.clock"


def channel_cursor(tag: str, subscriber: str) -> str:
    """Cursor of a subscriber."""
    return f"c.{tag}.r.{subscriber}"


def channel_message_prefix(tag: str) -> str:
    """What the clock is put behind to name a message; scripts do that."""
    return f"c.{tag}.m."


def channel_message_id(tag: str, message_id: str) -> str:
    """Deduplication entry of a message."""
    return f"c.{tag}.mid.{message_id}"


def token_revocation(token_id: str) -> str:
    """Mark of a revoked token, as DSPS names it. The id is free text, whose length is bounded."""
    if len(token_id) > _TOKEN_ID_MAX:
        token_id = f"sha256:{hashlib.sha256(token_id.encode()).hexdigest()}"
    return f"jwt.{{{token_id}}}.revoke"


def channel_topic(tag: str) -> str:
    """Pub/sub topic that wakes the long polls of a channel."""
    return f"dsps.c.{tag}"


def outbox_lane(tag: str, endpoint: str) -> str:
    """The lane of a channel to an endpoint: a key prefix in the channel's slot."""
    return f"c.{tag}.out.{endpoint}"


_CHANNEL_LANE = re.compile(r"c\.\{(?:([^.{}]+)\.)?([^.{}]+)\}\.out\.[^.{}]+")


def channel_of_lane(lane: str) -> tuple[str, str] | None:
    """Project and channel of a lane; None when it is not a channel's."""
    match = _CHANNEL_LANE.fullmatch(lane)
    return (match.group(1) or DEFAULT_PROJECT, match.group(2)) if match else None
