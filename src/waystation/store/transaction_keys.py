"""The rows of the catalogue that belong to transactions; those of their record logs are the logs'.

All keys of a cell share its tag, so that every transition is one script.
"""

from __future__ import annotations

from waystation.store.key_kind import KeyKind

_CELL = "{tx.<cell>}:"

TRANSACTION_KEYS = (
    KeyKind(
        pattern=_CELL + "stateH:<transaction>",
        type="hash",
        content="a transaction: `head` (a line of words, the scripts' own), `state` (packed, "
        "the worker's), `externalId`, `parent`, `switches`, `wait:…`, `once:…`, "
        "`kids`, `result:…`, `cause`, `progress`, `progressAt`, `reply`, `notifiedTime`, "
        "`webhook_…`",
        writer="transactions: start, fan_out, and every script after them; restore",
        dies="with the archive: removed, or by TTL once archived",
    ),
    KeyKind(
        pattern=_CELL + "qInL:<node group>",
        type="list",
        content="ids that begin a pipeline, or go on after a sleep",
        writer="transactions: start, fan_out, pass_on, wake, switch, resume, release, "
        "rescue; claim",
        dies="when it is empty",
    ),
    KeyKind(
        pattern=_CELL + "qOutL:<node group>",
        type="list",
        content="ids that return to a parent frame, or whose children have ended",
        writer="transactions: pass_on, fan_wait, the end of a last child, release, rescue; claim",
        dies="when it is empty",
    ),
    KeyKind(
        pattern=_CELL + "qAdminL:<node group>",
        type="list",
        content="admin events, `set <field> <value>`; cell 0 only",
        writer="transactions: nodes; claim",
        dies="when it is empty",
    ),
    KeyKind(
        pattern=_CELL + "holdL:<pipeline>",
        type="list",
        content="ids of a paused pipeline, in order",
        writer="transactions: claim, resume",
        dies="when it is empty",
    ),
    KeyKind(
        pattern=_CELL + "nodeGroupH:<node group>",
        type="hash",
        content="settings that every node of the node group follows, and their `revision`; "
        "cell 0 only",
        writer="transactions: claim, which applies admin events",
        dies="never",
    ),
    KeyKind(
        pattern=_CELL + "pipelineH:<pipeline>",
        type="hash",
        content="working copy of a pipeline: `revision`, `active`, `type` (1: may be started "
        "from outside), `paused`, `v:<version>` for each definition kept",
        writer="transactions: define",
        dies="never: revisions of a name must not run backwards",
    ),
    KeyKind(
        pattern=_CELL + "processingZ",
        type="sorted set",
        content="running ids → time of their claim in ms",
        writer="transactions: claim; whatever ends a run",
        dies="when it is empty",
    ),
    KeyKind(
        pattern=_CELL + "leaseZ",
        type="sorted set",
        content="running ids → end of the lease in ms",
        writer="transactions: claim, renew; whatever ends a run",
        dies="when it is empty",
    ),
    KeyKind(
        pattern=_CELL + "sleepingZ",
        type="sorted set",
        content="ids that sleep, wait for a switch or are scheduled → latest wake-up in ms",
        writer="transactions: start, sleep; wake, wake_due, restore, switch, cancel, expire",
        dies="when it is empty",
    ),
    KeyKind(
        pattern=_CELL + "deadlineZ",
        type="sorted set",
        content="ids with a deadline, or with a cancel under way → when they are ended",
        writer="transactions: start, fan_out, cancel, expire; the end",
        dies="when it is empty",
    ),
    KeyKind(
        pattern=_CELL + "sweepZ",
        type="sorted set",
        content="parents whose children are to be cancelled → since when",
        writer="transactions: cancel, expire, the end of a child; sweep",
        dies="when it is empty",
    ),
    KeyKind(
        pattern=_CELL + "toArchiveZ",
        type="sorted set",
        content="ids → when archiving is due",
        writer="transactions: start, sleep, switch, commit, the end; wake; to_archive",
        dies="when it is empty",
    ),
    KeyKind(
        pattern=_CELL + "toArchiveLock<number>",
        type="string",
        content="`<node> <deadline ms>`: who archives (1), until when nobody else does (2)",
        writer="transactions: to_archive",
        dies="60 s after its deadline, which alone decides",
    ),
    KeyKind(
        pattern=_CELL + "archiveFailedH",
        type="hash",
        content="ids that the archive has refused → `<ms> <tries> <cause>`",
        writer="transactions: to_archive",
        dies="when it is empty",
    ),
    KeyKind(
        pattern=_CELL + "toldS:<what>",
        type="string",
        content="that operators were told: `archive`, `webhooks` or `set-aside`; in cell 0 alone",
        writer="transactions: watch",
        dies="1 h after they were",
    ),
    KeyKind(
        pattern=_CELL + "loadH:<minute>",
        type="hash",
        content="ids that are not in the store → load nonce, under which one may bring them back",
        writer="transactions: get, wake, wake_due, switch, cancel, expire, sweep; restore",
        dies="3 min after its last nonce",
    ),
    KeyKind(
        pattern=_CELL + "loadSeq",
        type="string, a number",
        content="the newest load nonce",
        writer="transactions: the same",
        dies="never: nonces must not run backwards",
    ),
    KeyKind(
        pattern=_CELL + "waitersZ",
        type="sorted set",
        content="ids that somebody waits for → until when",
        writer="transactions: mark",
        dies="a second after the longest wait",
    ),
    KeyKind(
        pattern=_CELL + "externalId:<project>:<external id>",
        type="string",
        content="id of the transaction that has it",
        writer="transactions: start; the end sets its expiry",
        dies="a period after its transaction has ended; before that, never",
    ),
    KeyKind(
        pattern=_CELL + "metric1H:<slot>",
        type="hash",
        content="counts of five seconds: `g:::<node "
        "group>:::o:::<project>:::p:::<pipeline>:::<what>`",
        writer="transactions: start, fan_out, claim, the end",
        dies="5 min after its slot",
    ),
    KeyKind(
        pattern=_CELL + "metric2H:<slot>",
        type="hash",
        content="the same of 100 seconds",
        writer="transactions: count_slots, once the slot is over",
        dies="2 h after its slot",
    ),
    KeyKind(
        pattern=_CELL + "metric3H:<slot>",
        type="hash",
        content="the same of 1000 seconds",
        writer="transactions: count_slots, once the slot is over",
        dies="24 h after its slot",
    ),
    KeyKind(
        pattern="datp:node-registration:RECORD:<node group>:nodeId-<node>",
        type="string, JSON",
        content="a node: its step types and what it does",
        writer="transactions: register, every 5 s",
        dies="60 s after the last beat",
    ),
    KeyKind(
        pattern="waystation.{nodes}",
        type="sorted set",
        content="registration key → last beat in ms",
        writer="transactions: enlist",
        dies="when it is empty",
    ),
    KeyKind(
        pattern=_CELL + "work:<node group>",
        type="pub/sub",
        content="hint for workers: a queue of the node group that was empty is not",
        writer="transactions: whatever queues",
        dies="at once",
    ),
    KeyKind(
        pattern=_CELL + "due",
        type="pub/sub",
        content="hint for timekeepers: something is due earlier; the payload names the sorted set",
        writer="transactions: start, sleep, cancel",
        dies="at once",
    ),
    KeyKind(
        pattern=_CELL + "ended",
        type="pub/sub",
        content="hint for those who wait: ids that have ended, blanks between them",
        writer="transactions: the end",
        dies="at once",
    ),
    KeyKind(
        pattern=_CELL + "progress",
        type="pub/sub",
        content="hint for those who wait for progress: the id of one that has reported it",
        writer="transactions: report",
        dies="at once",
    ),
    KeyKind(
        pattern="waystation.{pipelines}",
        type="pub/sub",
        content="hint for every node: a definition has changed",
        writer="transactions: pipelines",
        dies="at once",
    ),
    KeyKind(
        pattern="waystation.{nodes}",
        type="pub/sub",
        content="hint for every node: a setting of a node group has changed",
        writer="transactions: claim",
        dies="at once",
    ),
    KeyKind(
        pattern=_CELL + "webhooksZ:<receiver>",
        type="sorted set",
        content="a lane of replies: item → its next attempt in ms; an item is the id of a "
        "transaction, with `.c` or `.t` behind it for channel and topic",
        writer="transactions: whatever happens to one that is to be told of, replied; delivery: "
        "claim, renew, settle, redrive, discard",
        dies="when it is empty",
    ),
    KeyKind(
        pattern=_CELL + "webhookLanesZ",
        type="sorted set",
        content="register of the lanes of replies: lane → since when it has something, in ms",
        writer="transactions: with `webhooksZ`; delivery: redrive, unlist",
        dies="when it is empty",
    ),
    KeyKind(
        pattern=_CELL + "webhookH",
        type="hash",
        content="item → `<event> <version>`; `.attempts`, `.cause`, `.token`, `.newer` (an event "
        "came during the attempt), `.lane` (of one that was given up) beside it",
        writer="transactions: with `webhooksZ`; delivery: claim, settle, redrive, discard",
        dies="with its items",
    ),
    KeyKind(
        pattern=_CELL + "webhooksFailedZ:<project>",
        type="sorted set",
        content="replies that were given up: item → when, in ms; the newest 10,000",
        writer="delivery: settle, redrive, discard; transactions: with `webhooksZ`",
        dies="when it is empty",
    ),
    KeyKind(
        pattern=_CELL + "webhooksUntoldZ:<receiver>",
        type="sorted set",
        content="replies that were given up → when somebody else is to tell the operator of it",
        writer="delivery: settle, claim, redrive, discard",
        dies="when it is empty",
    ),
    KeyKind(
        pattern=_CELL + "webhookAttempts",
        type="stream",
        content="records of the newest attempts of replies, about 10,000",
        writer="delivery: settle",
        dies="7 days after the last attempt",
    ),
    KeyKind(
        pattern=_CELL + "webhookCountH",
        type="hash",
        content="`dropped`: how many of the failed lists were given up for newer ones",
        writer="delivery: settle",
        dies="never",
    ),
    KeyKind(
        pattern=_CELL + "webhookLanesZ",
        type="pub/sub",
        content="hint for deliverers: a lane of replies was registered",
        writer="transactions: with `webhooksZ`; delivery: redrive",
        dies="at once",
    ),
    KeyKind(
        pattern=_CELL + "webhooksZ:<receiver>.wake",
        type="pub/sub",
        content="hint for deliverers: something is due in the lane",
        writer="transactions: with `webhooksZ`; delivery: redrive",
        dies="at once",
    ),
)
