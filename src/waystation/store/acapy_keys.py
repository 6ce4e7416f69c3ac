"""The rows of the catalogue that belong to relay and deliverer.

The plugin names its lists itself, without a tag; what lies beside a list has the list's whole name
as its tag, so that both are in one slot. If a setting gives a list a name with a hash tag, the name
beside it is `<list>.<what>`, which has the same tag (`store/slots.py`).
"""

from __future__ import annotations

from waystation.store.key_kind import KeyKind

_EMPTY = "when it is empty"
_MIRROR = "acapy: mirror_put; agents and mediators"

ACAPY_KEYS = (
    KeyKind(
        pattern="uid_recip_keys_map",
        type="hash",
        content="agent → its recipient keys, a JSON list in URL-safe base64",
        writer=_MIRROR,
        dies=_EMPTY,
    ),
    KeyKind(
        pattern="recip_key_uid_map",
        type="hash",
        content="recipient key → agent",
        writer=_MIRROR,
        dies=_EMPTY,
    ),
    KeyKind(
        pattern="uid_recip_key_pending_msg_count",
        type="hash",
        content="`<agent>_<recipient key>` → messages that wait",
        writer=_MIRROR,
        dies=_EMPTY,
    ),
    KeyKind(
        pattern="uid_last_access_map",
        type="hash",
        content="agent → when it got a message, local time",
        writer="agents; the reconciler deletes those that have gone",
        dies=_EMPTY,
    ),
    KeyKind(
        pattern="round_robin_iterator",
        type="string, integer",
        content="place in the names of `uid_recip_keys_map` at which a mediator goes on",
        writer="acapy: mirror_set; mediators",
        dies="never",
    ),
    KeyKind(
        pattern="{<map of agents>}.version",
        type="string, integer",
        content="version of the pool's map that the plugin's key was written from",
        writer="acapy: mirror_put, mirror_set",
        dies="never: an older one must not be written",
    ),
    KeyKind(
        pattern="<inbound topic>_<recipient key>",
        type="list",
        content="messages for the agent that has the key: `payload`, `transport_type`, `txn_id`; "
        "ours begin with `waystation`, their number",
        writer="acapy: mirror_push; mediators; agents pop",
        dies=_EMPTY,
    ),
    KeyKind(
        pattern="{<inbound topic>_<recipient key>}.pushed",
        type="string, integer",
        content="last number that we put into the list",
        writer="acapy: mirror_push",
        dies="never, unless the pool forgets the key",
    ),
    KeyKind(
        pattern="{waystation.mirror}:changed",
        type="pub/sub",
        content="hint for the reconciler: the map has changed",
        writer="acapy: whoever enqueued for a key with another epoch",
        dies="at once",
    ),
    KeyKind(
        pattern="{<list of agents>}.leases",
        type="sorted set",
        content="number of a message that was taken off the list → end of its lease in ms",
        writer="acapy: list_take, list_settle",
        dies=_EMPTY,
    ),
    KeyKind(
        pattern="{<list of agents>}.taken",
        type="hash",
        content="number → message as an agent wrote it",
        writer="acapy: list_take, list_settle",
        dies=_EMPTY,
    ),
    KeyKind(
        pattern="{<list of agents>}.number",
        type="string, integer",
        content="last number of a message that was taken off the list",
        writer="acapy: list_take",
        dies="never",
    ),
    KeyKind(
        pattern="<retry set>",
        type="sorted set",
        content="message of an agent, with `retries`, `id` and `since_ms` → due, in seconds",
        writer="acapy: retry_take, retry_settle, retry_redrive; deliverers of the plugin",
        dies=_EMPTY,
    ),
    KeyKind(
        pattern="{<retry set>}.dead",
        type="hash",
        content="id → dead letter: `<ms> <attempts> <bytes of the cause> <1: readable> `, then "
        "cause and message",
        writer="acapy: retry_bury, retry_redrive",
        dies=_EMPTY,
    ),
    KeyKind(
        pattern="{<retry set>}.failed",
        type="sorted set",
        content="id of a dead letter → when it became one, in ms",
        writer="acapy: retry_bury, retry_redrive",
        dies=_EMPTY,
    ),
)
