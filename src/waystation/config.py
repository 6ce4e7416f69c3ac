"""All settings of a process, as one typed object with one section per part.

A setting `http.port` is `port` in the table `[http]` of the settings file, `WAYSTATION_HTTP_PORT`
in the environment, and may have a flag. `waystation.config_sources` reads these sources.

The `#:` comment of a setting is its description in docs/reference/settings.md.
"""

from __future__ import annotations

import ipaddress
import os
import re
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta

# -- Types of values ---------------------------------------------------------------------------

Count = Annotated[int, Meta(ge=1)]
Port = Annotated[int, Meta(ge=0, le=65535)]
Seconds = Annotated[float, Meta(gt=0, le=365 * 86400)]
#: Text that is never displayed or logged.
Secret = Annotated[str, Meta(extra={"secret": True})]
#: Secret that a client sends as `Authorization: Bearer …`.
Bearer = Annotated[Secret, Meta(min_length=16, pattern=r"^[0-9A-Za-z._~+/=-]+$")]

#: When the store confirms a write: `disk` after the fsync, `memory` before it.
Durability = Literal["memory", "disk"]
#: Policy of a channel at its limit: reject the new message, or delete the oldest one.
Backlog = Literal["refuse", "drop_oldest"]
#: Policy of a full record log: delete records that history has not read, or reject new ones.
WhenFull = Literal["drop_and_count", "refuse"]
#: Whether nodes write record logs.
RecordLogs = Literal["full", "none"]
# One line per family is easier to read than twelve lines.
# fmt: off
Algorithm = Literal[
    "ES256", "ES384", "ES512", "HS256", "HS384", "HS512",
    "PS256", "PS384", "PS512", "RS256", "RS384", "RS512",
]
# fmt: on
#: Prefix of list names. Braces are excluded because they would change the cluster slot of a list.
Prefix = Annotated[str, Meta(pattern=r"^[^{}\s]{1,100}$")]
_LIST_CHARACTER = r"[^{}\x00-\x1f\x7f]"
#: Name of a list, or its prefix. Braces must form one hash tag. Empty selects the default.
ListName = Annotated[
    str,
    Meta(
        pattern=rf"^{_LIST_CHARACTER}*(\{{{_LIST_CHARACTER}+\}}{_LIST_CHARACTER}*)?$",
        max_length=400,
    ),
]

#: Text that is displayed in place of a secret.
REDACTED = "•••"
#: The networks that DSPS treats as private.
PRIVATE_NETWORKS = (
    "10.0.0.0/8",
    "172.16.0.0/12",
    "192.168.0.0/16",
    "fc00::/7",
    "127.0.0.0/8",
    "169.254.0.0/16",
    "::1/128",
    "fe80::/10",
)


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table of the settings file."""


# -- Server ------------------------------------------------------------------------------------


class HttpConfig(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The HTTP server: its address and its limits."""

    #: Largest request body in bytes; a larger one is answered 413 before it is read completely.
    body_bytes_max: Count = 1_048_576
    #: Origins that browsers may send requests from. `auto` allows every origin if keys are
    #: required, otherwise loopback origins only.
    cors_origins: list[str] = msgspec.field(default_factory=lambda: ["auto"])
    #: Seconds that a stopping server waits for running requests.
    grace_seconds: Seconds = 5.0
    #: Largest size of request line and headers together in bytes; larger ones are answered 431.
    header_bytes_max: Count = 32_768
    #: Address to listen on; `0.0.0.0` selects all addresses of the machine.
    host: str = "127.0.0.1"
    #: Limit of open connections; 0 derives it from the limit of file descriptors.
    connections_max: Annotated[int, Meta(ge=0)] = 0
    #: Whether `/metrics` can be read without a key.
    metrics_public: bool = False
    #: Prefix of all paths, for a server behind a proxy that does not remove its prefix.
    path_prefix: str = ""
    #: Longest wait of a long poll in seconds; a longer one is shortened to this, as in DSPS.
    poll_seconds_max: Seconds = 30.0
    #: Port to listen on; 0 selects a free port.
    port: Port = 7070
    #: URL by which other systems reach this server; callback URLs start with it. Empty selects the
    #: server's own address in `dev`.
    public_url: str = ""
    #: Header with the address of the client, such as `x-forwarded-for`; see `trusted_proxies`.
    real_ip_header: str = ""
    #: Seconds in which a client must send its complete request; a slower one is answered 408.
    read_seconds_max: Seconds = 10.0
    #: Longest duration of a live stream in seconds; clients reconnect by themselves.
    stream_seconds_max: Seconds = 3600.0
    #: Networks of the proxies whose `real_ip_header` is trusted.
    trusted_proxies: list[str] = msgspec.field(default_factory=lambda: list(PRIVATE_NETWORKS))

    @property
    def is_loopback(self) -> bool:
        """True if only this machine can reach the server."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    @property
    def prefix(self) -> str:
        """Path prefix with a leading slash and without a trailing one; empty for no prefix."""
        bare = self.path_prefix.strip("/")
        return f"/{bare}" if bare else ""


class StoreConfig(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The Valkey or Redis store. Without a URL the process starts one in the data directory."""

    #: Seconds after which a store call without a reply fails.
    call_seconds_max: Seconds = 5.0
    #: Whether the embedded store runs as a cluster of one node, for clients that need a cluster.
    cluster: bool = False
    #: `disk` confirms a write after the fsync; with `memory` a power cut can lose two seconds.
    durability: Durability = "disk"
    #: Whether to accept a store that keeps no data across a restart.
    ephemeral: bool = False
    #: Port on 127.0.0.1 where other programs can use the embedded store; 0 for none.
    port: Port = 0
    #: URL of the store: `redis://`, `rediss://`, `unix://`, `redis+cluster://` or
    #: `rediss+cluster://`. Empty starts the embedded store.
    url: Secret = ""


class AuthConfig(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Authentication."""

    #: Whether to serve every request without a key, as project `default`.
    insecure: bool = False


class AdminConfig(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The `/admin` routes of DSPS, which revoke tokens and change log levels."""

    #: Secrets of at least 16 characters that give access to `/admin`, in addition to the admin keys
    #: of project `default`.
    bearer: list[Bearer] = msgspec.field(default_factory=list)
    #: Networks from which `/admin` can be reached.
    networks: list[str] = msgspec.field(default_factory=lambda: list(PRIVATE_NETWORKS))


class LogConfig(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Log lines, written to standard error."""

    #: Format of log lines; `auto` selects `pretty` on a terminal and `json` otherwise.
    format: Literal["auto", "json", "pretty"] = "auto"
    #: Lowest level that is logged: `debug`, `info`, `warning` or `error`.
    level: Literal["debug", "info", "warning", "error"] = "info"


# -- Channels ----------------------------------------------------------------------------------


class TokenRule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Conditions for the JSON Web Tokens that a channel accepts."""

    algorithms: tuple[Algorithm, ...] = ()
    #: Files with keys, any of which may verify a token: PEM for RS, PS and ES; for HS the secret
    #: itself, byte for byte.
    key_files: tuple[str, ...] = ()
    issuers: Annotated[tuple[str, ...], Meta(min_length=1)]
    audiences: tuple[str, ...] = ()
    #: Accepted values by claim; values may be templates.
    claims: dict[str, tuple[str, ...]] = {}
    clock_skew_seconds: Annotated[float, Meta(ge=0, le=3600)] = 300.0
    #: Whether to accept tokens without a signature (`alg` none).
    allow_none: bool = False

    def redacted(self) -> dict[str, Any]:
        """Return the fields that differ from their defaults. Secrets are in files, not here."""
        return _changed_fields(self)


class WebhookRule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Endpoint that receives the messages of a channel. URL and header values may be templates."""

    name: Annotated[str, Meta(pattern=r"^[0-9a-z][0-9a-z_-]{0,62}$")]
    url: str
    method: Literal["PUT", "POST"] = "PUT"
    headers: dict[str, str] = {}
    #: File with the value of the Authorization header; empty for no such header.
    authorization_file: str = ""
    #: File with signing secrets, `whsec_…`, one per line. Every secret signs each request, so that
    #: receivers can change from one secret to another. Empty for unsigned requests.
    secret_file: str = ""
    #: Limit of attempts, including the first one.
    attempts: Annotated[int, Meta(ge=1, le=1000)] = 10
    #: Seconds before the second attempt.
    first_wait_seconds: Annotated[float, Meta(ge=0, le=86400)] = 3.0
    #: Growth of the waits: by the factor `multiplier`, or linearly by `first_wait_seconds`.
    growth: Literal["linear", "exponential"] = "exponential"
    multiplier: Annotated[float, Meta(ge=1, le=100)] = 2.0
    wait_seconds_min: Annotated[float, Meta(ge=0, le=86400)] = 0.0
    wait_seconds_max: Annotated[float, Meta(gt=0, le=30 * 86400)] = 3600.0
    #: Share of a wait by which it varies at random, so that retries do not arrive together.
    jitter: Annotated[float, Meta(ge=0, le=1)] = 0.2
    #: Statuses that are not retried, in addition to those that DSPS never retries.
    fatal_codes: tuple[Annotated[int, Meta(ge=300, le=599)], ...] = ()
    #: Statuses that are retried although DSPS does not. With 410, a 410 does not disable the
    #: endpoint.
    retry_codes: tuple[Annotated[int, Meta(ge=300, le=599)], ...] = ()
    #: Seconds in which the connection must be established.
    connect_timeout_seconds: Annotated[float, Meta(gt=0, le=60)] = 5.0
    #: Seconds after which a request without a complete reply fails.
    timeout_seconds: Annotated[float, Meta(gt=0, le=60)] = 30.0

    def redacted(self) -> dict[str, Any]:
        """Return the fields that differ from their defaults, without secrets.

        Header values and all of the URL but its host are replaced, because they may be secret.
        """
        fields = _changed_fields(self)
        scheme, _, rest = self.url.partition("://")
        fields["url"] = f"{scheme}://{re.split('[/?#]', rest)[0].rpartition('@')[2]}/…"
        if self.headers:
            fields["headers"] = dict.fromkeys(self.headers, REDACTED)
        return fields


class ChannelRule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A `[[channels.rules]]` table: terms of all channels whose name matches a pattern."""

    #: Pattern of the complete name, in the syntax of RE2. Named groups fill templates.
    pattern: Annotated[str, Meta(min_length=1, max_length=1000)]
    expire_seconds: Annotated[float, Meta(gt=0, le=365 * 86400)] | None = None
    tokens: TokenRule | None = None
    webhooks: tuple[WebhookRule, ...] = ()
    #: Limit of stored messages per channel, acknowledged ones included; None for no limit.
    backlog_max: Annotated[int, Meta(ge=1, le=1_000_000_000)] | None = None
    #: Policy of a full channel: reject the new message, or delete the oldest one.
    backlog_policy: Backlog = "refuse"
    #: Parts of the messages that history keeps: `full`, `headers` (all but the content) or `none`.
    record: Literal["full", "headers", "none"] = "full"

    def redacted(self) -> dict[str, Any]:
        """Return the fields that differ from their defaults, without secrets."""
        fields = _changed_fields(self)
        if self.tokens is not None:
            fields["tokens"] = self.tokens.redacted()
        if self.webhooks:
            fields["webhooks"] = [each.redacted() for each in self.webhooks]
        return fields


def _changed_fields(rule: msgspec.Struct) -> dict[str, Any]:
    return {
        field.name: value
        for field in msgspec.structs.fields(rule)
        if (value := getattr(rule, field.name)) != field.default
        and not (field.default_factory is dict and not value)
    }


class ChannelConfig(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """HTTP pub/sub channels."""

    #: Whether the reply to a rejected token contains the `reason`.
    disclose_rejections: bool = False
    #: Seconds after which a message, or a subscriber that does not return, expires.
    expire_seconds: Seconds = 1800.0
    #: Approximate limit of bytes per fetch; the reply says if there are more messages.
    fetch_bytes_max: Count = 8_388_608
    #: Limit of messages per fetch; a larger `max` is answered 400.
    fetch_messages_max: Count = 10_000
    #: Rules by name pattern, each a `[[channels.rules]]` table; see docs/guides/channels.md.
    rules: tuple[ChannelRule, ...] = ()


# -- Topics, subscriptions, deliveries, pools --------------------------------------------------


class TopicConfig(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Topics: limits of messages and partition counts."""

    #: Largest body of a produce request in bytes, for batches and large messages in base64.
    body_bytes_max: Count = 8_388_608
    #: Largest size of payload, id, group and headers of a message in bytes; more is answered 413.
    message_bytes_max: Count = 5_242_880
    #: Whether to reject partition counts other than 1, 2, 3 and multiples of 4 or 6, instead of
    #: logging a warning.
    strict_partitions: bool = False


class SubscriptionConfig(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Subscriptions: the part of this node in their delivery."""

    #: Whether this node delivers. A node that does not can still manage subscriptions.
    deliver: bool = True
    #: Seconds that a stopping node waits for running requests; other nodes deliver the rest.
    grace_seconds: Seconds = 5.0
    #: Seconds without renewal after which another node can take over a shard.
    lease_seconds: Annotated[float, Meta(ge=1, le=3600)] = 10.0
    #: Largest size in bytes of a shard's record log that history has not read. Before the first
    #: reader of history has registered, the shards of a subscription share 16 MiB, and each has at
    #: least 1 MiB.
    log_bytes_max: Annotated[int, Meta(ge=1_048_576, le=2**53 - 1)] = 268_435_456
    #: Days for which a finished operation is kept.
    operation_days: Annotated[float, Meta(gt=0, le=365)] = 7.0
    #: Limit of shards that this node owns.
    shards_max: Count = 1000


class DeliveryConfig(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Outgoing requests of webhooks, replies and subscriptions."""

    #: Private networks that requests may reach, such as `10.1.0.0/16`.
    allowed_networks: list[str] = msgspec.field(default_factory=list)
    #: Whether requests may reach this machine; `dev` enables it.
    loopback: bool = False
    #: URL that receives alerts about failed deliveries and disabled endpoints; empty for none.
    notice_url: Secret = ""
    #: Limit of pending deliveries per webhook and channel; further ones are dropped and counted.
    waiting_max: Count = 100_000


class PoolConfig(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Pools: maintenance and limits."""

    #: Seconds between two searches for expired leases, stale workers and idle keys.
    sweep_seconds: Seconds = 1.0
    #: Limit of claimed messages per worker; one script call reads all of them.
    taken_max: Annotated[int, Meta(ge=1, le=500)] = 500
    #: Limit of workers per pool; one script call reads all of them.
    workers_max: Annotated[int, Meta(ge=1, le=500)] = 500


# -- Transactions ------------------------------------------------------------------------------


class TransactionConfig(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Transactions: the app that this process runs, its capacity and its limits."""

    #: App whose steps this process runs, as `module:name`; `built-in` for the built-in steps only;
    #: empty for none.
    app: str = ""
    #: Transactions that this process archives per batch; 0 disables archiving in this process.
    archive_batch: Annotated[int, Meta(ge=0, le=10_000)] = 1000
    #: Seconds after which a completed or sleeping transaction may be archived.
    archive_delay_seconds: Seconds = 60.0
    #: Seconds that the next archiver waits in addition to `archive_role_seconds`, so that writes of
    #: the previous one can finish.
    archive_grace_seconds: Annotated[float, Meta(gt=0, le=3600)] = 5.0
    #: Seconds between two batches while few transactions are due.
    archive_pause_idle_seconds: Annotated[float, Meta(gt=0, le=3600)] = 1.0
    #: Seconds between two batches.
    archive_pause_seconds: Annotated[float, Meta(ge=0, le=3600)] = 0.0
    #: Seconds for which one process archives before another may take over.
    archive_role_seconds: Annotated[float, Meta(ge=1, le=3600)] = 60.0
    #: Seconds for which the store keeps an archived transaction after its last use.
    cache_seconds: Seconds = 300.0
    #: Seconds that a running step has after a cancellation or a passed deadline.
    cancel_grace_seconds: Seconds = 30.0
    #: Number of cells, the units of atomicity that are distributed over a cluster. It is fixed when
    #: the data set is created; 0 selects the number of the data set, 16 for a new one.
    cells: Annotated[int, Meta(ge=0, le=65536)] = 0
    #: Limit of nested pipelines, counting Child and Parallel; one more fails the step with
    #: `transaction.tree-too-deep`.
    depth_max: Annotated[int, Meta(ge=1, le=100)] = 32
    #: Limit of descendants at all levels of one Parallel in a transaction without a parent; more
    #: fail the step with `transaction.tree-too-large`.
    descendants_max: Annotated[int, Meta(ge=1, le=10_000_000)] = 100_000
    #: Seconds for which the external id of a completed transaction stays reserved.
    external_id_seconds: Seconds = 172_800.0
    #: Seconds that a stopping process waits for running steps; other processes run the rest.
    grace_seconds: Seconds = 5.0
    #: Node group whose queues this process serves.
    group: Annotated[str, Meta(pattern=r"^[0-9a-z][0-9a-z_-]{0,62}$")] = "master"
    #: Seconds without renewal after which another worker can claim a transaction.
    lease_seconds: Annotated[float, Meta(ge=1, le=3600)] = 10.0
    #: Seconds after which another process loads a due transaction from the archive if the first one
    #: has not.
    load_pause_seconds: Annotated[float, Meta(ge=1, le=60)] = 30.0
    #: Transactions claimed in advance, so that no worker waits for the store.
    prefetch: Annotated[int, Meta(ge=0, le=10_000)] = 200
    #: Whether to reload the app when one of its files changes; `dev` enables it.
    reload: bool = False
    #: Limit of process crashes caused by one step that runs alone; one more fails its transaction.
    rescues_max: Count = 3
    #: Largest state in bytes: data, outputs and journal of a transaction together.
    state_bytes_max: Annotated[int, Meta(ge=1024, le=8_388_608)] = 1_048_576
    #: Largest `timeout` of a step in seconds; a step without one has 180 s.
    step_seconds_max: Seconds = 3600.0
    #: Limit of steps that run concurrently.
    workers: Annotated[int, Meta(ge=1, le=10_000)] = 100


class ArchiveConfig(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The database of transactions that have left the store."""

    #: Days for which ended transactions are kept; 0 keeps them forever.
    retention_days: Annotated[float, Meta(ge=0, le=36500)] = 0
    #: URL `postgresql://…`; empty selects a SQLite file in the data directory.
    url: Secret = ""


class WebhookConfig(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Replies of transactions to webhooks, channels and topics."""

    #: Limit of attempts per reply, including the first one.
    attempts: Annotated[int, Meta(ge=1, le=1000)] = 8
    #: Longest pause between two probes of a failing URL in seconds.
    disable_seconds: Seconds = 30.0
    #: Different replies to one URL that must fail, while none succeeds, to pause it; 0 for never.
    fail_limit: Annotated[int, Meta(ge=0)] = 10
    #: Seconds without a further failure after which the failures of a URL are forgotten.
    fail_period_seconds: Seconds = 120.0
    #: Seconds before the second attempt.
    first_wait_seconds: Annotated[float, Meta(ge=0, le=86400)] = 5.0
    #: Factor by which each wait grows.
    multiplier: Annotated[float, Meta(ge=1, le=100)] = 2.0
    #: Seconds between two claims while all workers are busy; 0 waits until a worker is free.
    pause_busy_seconds: Annotated[float, Meta(ge=0, le=60)] = 0.0
    #: Seconds between two checks of the queue without a wake-up.
    pause_idle_seconds: Annotated[float, Meta(gt=0, le=60)] = 10.0
    #: Seconds between two claims for one receiver.
    pause_seconds: Annotated[float, Meta(ge=0, le=60)] = 0.0
    #: File with signing secrets, one per line; empty for unsigned requests.
    secret_file: str = ""
    #: Seconds after which an attempt fails.
    timeout_seconds: Annotated[float, Meta(gt=0, le=600)] = 30.0
    #: Longest wait between two attempts in seconds.
    wait_seconds_max: Annotated[float, Meta(gt=0, le=2592000)] = 3600.0
    #: Limit of attempts that this process runs concurrently; 0 disables sending in this process.
    workers: Annotated[int, Meta(ge=0, le=10_000)] = 100


# -- ACA-Py: relay and deliverer ---------------------------------------------------------------


class EventRule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A list of plugin events, and the topic that its events are produced to."""

    #: Name of the list, such as `acapy-record-base`.
    list: Annotated[str, Meta(pattern=r"^[^{}\s]{1,512}$")]
    topic: str
    project: str = "default"


class DoorRule(
    msgspec.Struct, frozen=True, kw_only=False, array_like=True, forbid_unknown_fields=True
):
    """A listener of the relay, written as `["http", "127.0.0.1", 8071]`."""

    kind: Literal["http", "ws"]
    host: str
    port: Port


class RelayConfig(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`waystation relay`, which receives envelopes for agents."""

    #: Seconds that the relay waits for a direct response.
    answer_seconds: Annotated[float, Meta(gt=0, le=60)] = 15.0
    #: Largest envelope in bytes; a larger one is answered 413, or closes its WebSocket.
    body_bytes_max: Annotated[int, Meta(ge=1, le=64 * 1_048_576)] = 1_048_576
    #: Listeners, each as `[kind, host, port]`; kinds are `http` and `ws`.
    doors: tuple[DoorRule, ...] = (
        DoorRule("http", "127.0.0.1", 8071),
        DoorRule("ws", "127.0.0.1", 8081),
    )
    #: List of direct responses: `acapy_direct_resp_topic` of the plugin. Empty selects both
    #: `<topic_prefix>_inbound_direct_resp` and `<topic_prefix>_inbound_direct_response`.
    direct_response_topic: ListName = ""
    #: Seconds of silence after which a WebSocket without a pending message is closed.
    idle_seconds: Seconds = 15.0
    #: Prefix of the agents' lists, `<inbound_topic>_<recipient key>`: `acapy_inbound_topic` of the
    #: plugin. Empty selects `<topic_prefix>_inbound`.
    inbound_topic: ListName = ""
    #: Whether the relay creates a missing pool as mirrored, for agents with the redis-events
    #: plugin.
    mirror: bool = False
    #: Pool that receives the envelopes; the relay creates it if it does not exist.
    pool: str = "agents"
    #: Project of the pool.
    project: str = "default"
    #: Key that the status listener requires in the header `access_token`; empty disables the
    #: listener.
    status_api_key: Secret = ""
    #: Address of the status listener.
    status_host: str = "127.0.0.1"
    #: Port of the status listener.
    status_port: Port = 8091
    #: Prefix of all list names that are not set.
    topic_prefix: Prefix = "acapy"

    @property
    def inbound(self) -> str:
        """Prefix of the names of the agents' lists."""
        return self.inbound_topic or f"{self.topic_prefix}_inbound"

    @property
    def direct_responses(self) -> tuple[str, ...]:
        """Names of the lists that agents write direct responses to."""
        if self.direct_response_topic:
            return (self.direct_response_topic,)
        # Return both names, because the plugin's agents and its relay use different ones.
        prefix = f"{self.topic_prefix}_inbound"
        return (f"{prefix}_direct_resp", f"{prefix}_direct_response")


class DelivererConfig(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`waystation deliverer`, which sends the messages of the agents' outbound list."""

    #: Limit of messages that are sent concurrently.
    concurrency: Annotated[int, Meta(ge=1, le=1024)] = 64
    #: Lists of events that are produced to topics, each a `[[deliverer.events]]` table.
    events: tuple[EventRule, ...] = ()
    #: List of outbound messages: `acapy_outbound_topic` of the plugin. The retry set is
    #: `<outbound_topic>_retry`. Empty selects `<topic_prefix>_outbound`.
    outbound_topic: ListName = ""
    #: Seconds after which a message for a failing or busy endpoint becomes a dead letter.
    patience_seconds: Seconds = 86_400.0
    #: Key that the status listener requires in the header `access_token`; empty disables the
    #: listener.
    status_api_key: Secret = ""
    #: Address of the status listener.
    status_host: str = "127.0.0.1"
    #: Port of the status listener.
    status_port: Port = 8092
    #: Seconds after which an attempt without a reply fails.
    timeout_seconds: Seconds = 10.0
    #: Prefix of the names of list and retry set, unless `outbound_topic` is set.
    topic_prefix: Prefix = "acapy"

    @property
    def outbound(self) -> str:
        """Name of the list of outbound messages."""
        return self.outbound_topic or f"{self.topic_prefix}_outbound"


# -- History -----------------------------------------------------------------------------------


class HistoryConfig(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """History: the lake, and the Spark session that writes and reads it."""

    #: Seconds from the start of one ingest to the next while messages and records arrive.
    every_seconds: Seconds = 60.0
    #: Policy of a full record log with records that history has not read: `drop_and_count` deletes
    #: and counts them, `refuse` rejects new records.
    full: WhenFull = "drop_and_count"
    #: Seconds without work after which a server ends the Spark process of its data pipeline. Spark
    #: starts again with the next message.
    idle_seconds: Seconds = 600.0
    #: Days for which the lake keeps rows; 0 keeps them forever.
    keep_days: Annotated[int, Meta(ge=0, le=36500)] = 0
    #: Folder or URL of the lake; empty selects `lake` in the data directory.
    lake: str = ""
    #: Spark master: `local[*]`, `spark://…`, `yarn`, `k8s://…`, or `sc://…` for Spark Connect.
    master: str = "local[*]"
    #: Memory of the Spark driver and of each executor.
    memory: Annotated[str, Meta(pattern=r"^[1-9][0-9]*[mg]$")] = "2g"
    #: Whether nodes write record logs of transactions and deliveries: `full` or `none`. An audit
    #: knows which ones are missing, because they are counted. Messages are always in their topics.
    record: RecordLogs = "full"
    #: Rows that one round reads and commits.
    round_rows: Count = 4_000_000
    #: Whether a running server runs the data pipeline: it ingests in a separate process.
    run: bool = False
    #: Further Spark settings by name, which override those of Waystation.
    spark: dict[str, str] = {}
    #: Seconds without a query after which the process ends that keeps a Spark session for
    #: `waystation history sql`.
    sql_idle_seconds: Seconds = 600.0
    #: Whether Spark serves its web pages while a job runs, on this machine only.
    ui: bool = False
    #: Hours for which files without a table are kept; must exceed the longest query or round.
    vacuum_hours: Count = 168


# -- All sections ------------------------------------------------------------------------------


def public_place(lake: str) -> str:
    """Return the absolute folder of a lake, or its URL without user and password."""
    if "://" not in lake:
        return os.path.abspath(lake)
    parts = urlsplit(lake)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


class Config(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All settings of a process."""

    admin: AdminConfig = AdminConfig()
    archive: ArchiveConfig = ArchiveConfig()
    auth: AuthConfig = AuthConfig()
    #: Database of projects, keys and definitions: `postgresql://…`; empty selects a SQLite file in
    #: the data directory.
    catalogue: Secret = ""
    channels: ChannelConfig = ChannelConfig()
    #: Data directory, with the embedded store, the SQLite files and the lake.
    data: str = ".waystation"
    deliverer: DelivererConfig = DelivererConfig()
    delivery: DeliveryConfig = DeliveryConfig()
    history: HistoryConfig = HistoryConfig()
    http: HttpConfig = HttpConfig()
    log: LogConfig = LogConfig()
    pools: PoolConfig = PoolConfig()
    relay: RelayConfig = RelayConfig()
    store: StoreConfig = StoreConfig()
    #: Whether tests can move the time. Requires the embedded store.
    time_machine: bool = False
    topics: TopicConfig = TopicConfig()
    subscriptions: SubscriptionConfig = SubscriptionConfig()
    transactions: TransactionConfig = TransactionConfig()
    webhooks: WebhookConfig = WebhookConfig()

    @property
    def lake_place(self) -> str:
        """Folder or URL of the lake."""
        return self.history.lake or str(self.data_dir / "lake")

    @property
    def public_lake(self) -> str:
        """Absolute folder of the lake, or its URL without user and password."""
        return public_place(self.lake_place)

    @property
    def data_dir(self) -> Path:
        """Absolute path of the data directory."""
        return Path(self.data).expanduser().absolute()
