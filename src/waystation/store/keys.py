"""The catalogue of every key: pattern, type, content, who writes it, when it dies.

Keys that change together share one hash tag, the part in braces, so that one script may touch
them all on a cluster. `docs/reference/keys.md` is generated from `CATALOGUE`.

Channels have exactly the keys of seed 002, so that a DSPS data set can be taken over as it is.
The tag of a channel of project `default` is its name; another project's is `<project>.<channel>`,
which is unambiguous, since a name has no dot.
"""

from __future__ import annotations

from dataclasses import dataclass

DEFAULT_PROJECT = "default"

#: Hash: version, dataset, created_ms. See format.py.
FORMAT = "waystation.format"
#: Hash: shift_ms, generation. Test mode only. See time_machine.py.
TIME = "waystation.time"
#: Hash: follower -> generation:seen_ms. Test mode only.
TIME_FOLLOWERS = "waystation.time.followers"


@dataclass(frozen=True, kw_only=True)
class KeyKind:
    """One row of the catalogue."""

    pattern: str
    type: str
    content: str
    writer: str
    dies: str


CATALOGUE = (
    KeyKind(
        pattern=FORMAT,
        type="hash",
        content="`version` of the data format, `dataset` id, `created_ms`",
        writer="format.py, once per data set",
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
        writer="channels: subscribe, ack, fetch over a gap; unsubscribe deletes it",
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
        content="expiry of a revoked token, seconds since the epoch",
        writer="channels: revoke",
        dies="when the token expires",
    ),
    KeyKind(
        pattern="<lane>.due",
        type="sorted set",
        content="outbox lane: item id → time of its next attempt in ms",
        writer="delivery: add, claim, settle, redrive; channels: publish",
        dies="when it is empty",
    ),
    KeyKind(
        pattern="<lane>.items",
        type="hash",
        content="outbox lane: item id → what to send; `.attempts`, `.cause`, `.token` beside it",
        writer="delivery: add, claim, settle, redrive; channels: publish",
        dies="when it is empty",
    ),
    KeyKind(
        pattern="<lane>.failed",
        type="sorted set",
        content="outbox lane: item id → when it was given up",
        writer="delivery: settle, redrive",
        dies="when it is empty",
    ),
    KeyKind(
        pattern="<lane>.attempts",
        type="stream",
        content="outbox lane: records of the newest attempts, about 1,000",
        writer="delivery: settle",
        dies="never",
    ),
    KeyKind(
        pattern="waystation.outbox.lanes",
        type="sorted set",
        content="register of outbox lanes: lane → when it was registered, in ms",
        writer="delivery: register, retire",
        dies="when it is empty",
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
        content="`first`, `end`, `ms`, `bytes`, `dropped`, limits, `sealed`, `warned_ms`",
        writer="logs: create, append, trim, seal, retain",
        dies="with its log",
    ),
    KeyKind(
        pattern="{<log>.<partition>}:log:holds",
        type="hash",
        content="reader → the offset from which on it still needs everything",
        writer="logs: hold, release",
        dies="with its log",
    ),
    KeyKind(
        pattern="{<log>.<partition>}:log:id:<message id in its scope>",
        type="string",
        content="`<offset>-<ms>` of the message, for deduplication",
        writer="topics: append_once",
        dies="when the window of the topic has passed",
    ),
    KeyKind(
        pattern="{t.<project>.<topic>}:topic",
        type="hash",
        content="working copy of a topic: `version`, `body` (JSON); the catalogue has the truth",
        writer="topics: put",
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
        writer="channels: publish, unsubscribe",
        dies="at once",
    ),
)


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
    """Mark of a revoked token. Its id is free text, so it must not close the hash tag."""
    return f"jwt.{{{token_id.replace('}', '%7D')}}}.revoke"


def channel_topic(tag: str) -> str:
    """Pub/sub topic that wakes the long polls of a channel."""
    return f"dsps.c.{tag}"


#: All logs by name.
LOG_REGISTER = "waystation.logs"


def log_entries(log: str, partition: int) -> str:
    """The stream of a partition."""
    return f"{{{log}.{partition}}}:log"


def log_head(log: str, partition: int) -> str:
    """What is known of a partition; scripts make this name from that of the stream."""
    return f"{{{log}.{partition}}}:log:head"


def log_holds(log: str, partition: int) -> str:
    """What readers of a partition still need."""
    return f"{{{log}.{partition}}}:log:holds"


def log_all(log: str, partition: int) -> tuple[str, str, str]:
    """What scripts need to append to a partition or to trim it: stream, head, holds."""
    entries = log_entries(log, partition)
    return entries, f"{entries}:head", f"{entries}:holds"


def topic(project: str, name: str) -> str:
    """Working copy of a topic."""
    return f"{{t.{project}.{name}}}:topic"


def log_message_id(log: str, partition: int, scoped_id: str) -> str:
    """Deduplication entry of a message; scripts make this name from that of the stream."""
    return f"{{{log}.{partition}}}:log:id:{scoped_id}"
