"""All settings, in one typed object: defaults < TOML file < environment < flags.

A setting `http.port` is `port` in the file's table `[http]`, `WAYSTATION_HTTP_PORT` in the
environment, and may have a flag. Unknown names are rejected by name, wherever they stand.
Secrets can come from a file: `WAYSTATION_STORE_URL_FILE=/run/secrets/store`, or `url_file` in
the TOML file. In the environment, and in such a file, a list is separated by commas or blanks,
and rules are JSON.
"""

from __future__ import annotations

import ipaddress
import re
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

Durability = Literal["memory", "disk"]
Count = Annotated[int, Meta(ge=1)]
Seconds = Annotated[float, Meta(gt=0, le=365 * 86400)]


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table of the settings file."""


#: Settings that must never be shown.
SECRETS = frozenset(
    {
        *("admin.bearer", "archive.url", "catalogue", "deliverer.status_api_key"),
        *("delivery.notice_url", "relay.status_api_key", "store.url"),
    }
)

#: What DSPS takes for the networks of one's own.
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

Port = Annotated[int, Meta(ge=0, le=65535)]


class HttpConfig(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The door: where it listens and what it lets in."""

    #: Requests with a larger body are answered 413 before the rest is read.
    body_bytes_max: Count = 1_048_576
    #: `auto` = any origin when keys are required, loopback origins otherwise; or a list.
    cors_origins: list[str] = msgspec.field(default_factory=lambda: ["auto"])
    #: How long a stopping server waits for the requests that it has begun.
    grace_seconds: Seconds = 5.0
    #: Request line and headers together; more is answered 431.
    header_bytes_max: Count = 32_768
    #: Address to listen on; `0.0.0.0` is every one that the machine has.
    host: str = "127.0.0.1"
    #: Open connections; 0 = derived from the limit of file descriptors.
    connections_max: Annotated[int, Meta(ge=0)] = 0
    #: Whether /metrics answers without a key.
    metrics_public: bool = False
    #: Put before every path, for servers behind a proxy that keeps its prefix.
    path_prefix: str = ""
    #: Longer long polls are silently cut to this, as in DSPS.
    poll_seconds_max: Seconds = 30.0
    #: Port to listen on; 0 takes any free one.
    port: Port = 7070
    #: What the outside reaches this station by: begin of callback URLs; `dev`: its own address.
    public_url: str = ""
    #: Header that tells the client's address, such as `x-forwarded-for`; see `trusted_proxies`.
    real_ip_header: str = ""
    #: A request that is not fully sent by then is answered 408.
    read_seconds_max: Seconds = 10.0
    #: Live streams are ended after this at the latest; their clients come back by themselves.
    stream_seconds_max: Seconds = 3600.0
    #: Networks of proxies whose `real_ip_header` is believed.
    trusted_proxies: list[str] = msgspec.field(default_factory=lambda: list(PRIVATE_NETWORKS))

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach the server."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    @property
    def prefix(self) -> str:
        """The path prefix with one slash before it and none behind, however it was written."""
        bare = self.path_prefix.strip("/")
        return f"/{bare}" if bare else ""


class StoreConfig(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The Valkey or Redis server; without a URL one is started in the data directory."""

    #: A call that has no reply by then ends with an error.
    call_seconds_max: Seconds = 5.0
    #: Run the embedded store as a cluster of one node, which clients of clusters need.
    cluster: bool = False
    #: `disk`: a reply comes after the fsync. `memory`: a power cut can cost two seconds.
    durability: Durability = "disk"
    #: Accept a store that keeps nothing over a restart.
    ephemeral: bool = False
    #: Port on 127.0.0.1 where others may use the embedded store too; 0 = nobody.
    port: Port = 0
    #: redis://, rediss:// or unix://; redis+cluster://, rediss+cluster://; empty = embedded.
    url: str = ""


class AuthConfig(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Who may come in."""

    #: Serve every request as project `default`, without a key.
    insecure: bool = False


class AdminConfig(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The routes under `/admin` that DSPS has: revocation of tokens, levels of log lines."""

    #: Secrets of 16 letters or more that open `/admin`, beside admin keys of project `default`.
    bearer: list[Annotated[str, Meta(min_length=16, pattern=r"^[0-9A-Za-z._~+/=-]+$")]] = (
        msgspec.field(default_factory=list)
    )
    #: Networks that `/admin` can be reached from.
    networks: list[str] = msgspec.field(default_factory=lambda: list(PRIVATE_NETWORKS))


class ChannelConfig(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """HTTP pub/sub channels."""

    #: Whether a refusal tells in `reason` what is wrong with a token.
    disclose_rejections: bool = False
    #: How long a message, and a subscriber that does not come back, is kept.
    expire_seconds: Seconds = 1800.0
    #: One fetch answers at most about this much, and says that there is more.
    fetch_bytes_max: Count = 8_388_608
    #: A larger `max` is answered 400.
    fetch_messages_max: Count = 10_000
    #: Rules by pattern, each a `[[channels.rules]]` table; see docs/guides/channel-rules.md.
    rules: tuple[ChannelRule, ...] = ()


class LogConfig(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the process writes about itself, to standard error."""

    #: `auto` = pretty on a terminal, JSON lines otherwise.
    format: Literal["auto", "json", "pretty"] = "auto"
    #: The least that is logged: `debug`, `info`, `warning` or `error`.
    level: Literal["debug", "info", "warning", "error"] = "info"


# One line per kind reads better than twelve.
# fmt: off
Algorithm = Literal[
    "ES256", "ES384", "ES512", "HS256", "HS384", "HS512",
    "PS256", "PS384", "PS512", "RS256", "RS384", "RS512",
]
# fmt: on
Backlog = Literal["refuse", "drop_oldest"]


class TokenRule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which JSON Web Tokens open a channel."""

    algorithms: tuple[Algorithm, ...] = ()
    #: Files: PEM for RS, PS and ES, the raw secret for HS, byte for byte. Any of them may verify.
    key_files: tuple[str, ...] = ()
    issuers: Annotated[tuple[str, ...], Meta(min_length=1)]
    audiences: tuple[str, ...] = ()
    #: Claim → accepted values; templates allowed.
    claims: dict[str, tuple[str, ...]] = {}
    clock_skew_seconds: Annotated[float, Meta(ge=0, le=3600)] = 300.0
    #: Tokens without a signature, `alg` none; never without this.
    allow_none: bool = False


class WebhookRule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where the messages of a channel are sent; URL and header values may be templates."""

    name: Annotated[str, Meta(pattern=r"^[0-9a-z][0-9a-z_-]{0,62}$")]
    url: str
    method: Literal["PUT", "POST"] = "PUT"
    headers: dict[str, str] = {}
    #: File with the value of an Authorization header.
    authorization_file: str = ""
    #: File with the signing secret, `whsec_…`; empty: requests are not signed. Several lines: all
    #: sign, so that receivers can change from one to another in their own time.
    secret_file: str = ""
    #: All attempts, the first included, and the wait before the second one.
    attempts: Annotated[int, Meta(ge=1, le=1000)] = 10
    first_wait_seconds: Annotated[float, Meta(ge=0, le=86400)] = 3.0
    #: Exponential: each wait is `multiplier` times as long. Linear: `first_wait_seconds` longer.
    growth: Literal["linear", "exponential"] = "exponential"
    multiplier: Annotated[float, Meta(ge=1, le=100)] = 2.0
    wait_seconds_min: Annotated[float, Meta(ge=0, le=86400)] = 0.0
    wait_seconds_max: Annotated[float, Meta(gt=0, le=30 * 86400)] = 3600.0
    #: A wait varies by this share of itself, so that many do not come back at once.
    jitter: Annotated[float, Meta(ge=0, le=1)] = 0.2
    #: Statuses after which there is no other attempt, beside those that DSPS never tries again;
    #: and those after which there is one nevertheless. With 410 among these, it disables nothing.
    fatal_codes: tuple[Annotated[int, Meta(ge=300, le=599)], ...] = ()
    retry_codes: tuple[Annotated[int, Meta(ge=300, le=599)], ...] = ()
    #: A request that takes longer has failed.
    connect_timeout_seconds: Annotated[float, Meta(gt=0, le=60)] = 5.0
    timeout_seconds: Annotated[float, Meta(gt=0, le=60)] = 30.0


class ChannelRule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One `[[channels.rules]]` of the settings."""

    #: Matches the whole name; the syntax is RE2's, as in DSPS. Named groups fill templates.
    pattern: Annotated[str, Meta(min_length=1, max_length=1000)]
    expire_seconds: Annotated[float, Meta(gt=0, le=365 * 86400)] | None = None
    tokens: TokenRule | None = None
    webhooks: tuple[WebhookRule, ...] = ()
    #: Most messages that a channel keeps, acknowledged or not; None = no bound.
    backlog_max: Annotated[int, Meta(ge=1, le=1_000_000_000)] | None = None
    #: What becomes of one more: it is refused, or the oldest is dropped for it.
    backlog_policy: Backlog = "refuse"


def shown_rule(rule: ChannelRule) -> dict[str, Any]:
    """A rule fit to be shown: what differs from the defaults, without what may be secret."""
    told: dict[str, Any] = _told(rule)
    if rule.tokens is not None:
        told["tokens"] = shown_tokens(rule.tokens)
    if rule.webhooks:
        told["webhooks"] = [shown_webhook(each) for each in rule.webhooks]
    return told


def shown_tokens(tokens: TokenRule) -> dict[str, Any]:
    """A token rule fit to be shown; it names files with secrets, and holds none."""
    return _told(tokens)


def shown_webhook(webhook: WebhookRule) -> dict[str, Any]:
    """A webhook fit to be shown: headers, and all of the URL but its host, may hold secrets."""
    told = _told(webhook)
    scheme, _, rest = webhook.url.partition("://")
    told["url"] = f"{scheme}://{re.split('[/?#]', rest)[0].rpartition('@')[2]}/…"
    if webhook.headers:
        told["headers"] = dict.fromkeys(webhook.headers, "•••")
    return told


def _told(thing: msgspec.Struct) -> dict[str, Any]:
    """The fields that do not have their default."""
    return {
        field.name: value
        for field in msgspec.structs.fields(thing)
        if (value := getattr(thing, field.name)) != field.default
        and not (field.default_factory is dict and not value)
    }


class DeliveryConfig(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Outgoing requests: webhooks and everything that is delivered."""

    #: Networks outside the public internet that requests may reach, such as `10.1.0.0/16`.
    allowed_networks: list[str] = msgspec.field(default_factory=list)
    #: Whether requests may reach this machine itself; `dev` says yes.
    loopback: bool = False
    #: Where notices of deliveries that were given up, and of disabled endpoints, are sent.
    notice_url: str = ""
    #: Most deliveries that wait for one webhook of one channel; more are dropped, and counted.
    waiting_max: Count = 100_000


#: What gives way when a log is full of what history has not read yet: that, or who appends.
WhenFull = Literal["drop_and_count", "refuse"]
#: Whether record logs are written.
RecordLogs = Literal["full", "none"]


class HistoryConfig(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """History: the lake, and the Spark that fills and reads it."""

    #: Seconds between two turns of an ingest that follows.
    every_seconds: Seconds = 60.0
    #: What a log does that is full of what history has not read: drop it and count, or refuse more.
    full: WhenFull = "drop_and_count"
    #: Folder or URL of the lake; empty: `lake` in the data directory.
    lake: str = ""
    #: Where Spark runs: `local[*]`, `spark://…`, `yarn`, `k8s://…`, or `sc://…` for Connect.
    master: str = "local[*]"
    #: Memory of Spark's driver, and of each executor.
    memory: Annotated[str, Meta(pattern=r"^[1-9][0-9]*[mg]$")] = "2g"
    #: Whether stations write down what becomes of transactions and deliveries: `full` or `none`,
    #: which is counted, so that an audit knows; messages are in their topics all the same.
    record: RecordLogs = "full"
    #: Rows that are read and committed at a time.
    round_rows: Count = 4_000_000
    #: Whether a station ingests while it runs, in a process of its own.
    run: bool = False
    #: Further settings of Spark by name; they win over ours.
    spark: dict[str, str] = {}
    #: Whether Spark shows its pages while a job runs, on this machine alone.
    ui: bool = False
    #: Hours for which files stay that no table needs any more; longer than any query or round.
    vacuum_hours: Count = 168


class PoolConfig(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Pools: how they are looked after, and what one of them can have."""

    #: How often leases that are over, stale workers and idle keys are looked for.
    sweep_seconds: Seconds = 1.0
    #: Messages that one worker may have taken; a script goes over all of them at once.
    taken_max: Annotated[int, Meta(ge=1, le=500)] = 500
    #: Workers of one pool; a script goes over all of them at once.
    workers_max: Annotated[int, Meta(ge=1, le=500)] = 500


class SubscriptionConfig(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Subscriptions: which node delivers them, and how it holds their shards."""

    #: Whether this node delivers; one that does not can still define and operate subscriptions.
    deliver: bool = True
    #: What a stopping node leaves requests that are under way; the rest is delivered by others.
    grace_seconds: Seconds = 5.0
    #: A shard is another's, if its owner was not heard for this long.
    lease_seconds: Annotated[float, Meta(ge=1, le=3600)] = 10.0
    #: What the record log of a shard keeps until history reads it; 16 MiB at most before a reader
    #: of history has registered.
    log_bytes_max: Annotated[int, Meta(ge=1_048_576, le=2**53 - 1)] = 268_435_456
    #: How long an operation that has ended is remembered.
    operation_days: Annotated[float, Meta(gt=0, le=365)] = 7.0
    #: Shards that one node owns at most.
    shards_max: Count = 1000


class TopicConfig(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Topics: what may be produced, and how they may be cut."""

    #: Requests that produce may be larger than others: a batch, or a large message in base64.
    body_bytes_max: Count = 8_388_608
    #: A message's payload, id, group and headers together; more is answered 413.
    message_bytes_max: Count = 5_242_880
    #: Refuse partition counts that are not 1, 2, 3 or a multiple of 4 or 6, instead of a warning.
    strict_partitions: bool = False


class TransactionConfig(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Transactions: the code that is run, and how it is run."""

    #: The app whose steps this process runs, `module:name`; `built-in`: our own steps alone; empty:
    #: none.
    app: str = ""
    #: States that this process takes to the archive at a time; 0: it does not archive.
    archive_batch: Annotated[int, Meta(ge=0, le=10_000)] = 1000
    #: How long what is complete, or asleep, stays before it may be archived.
    archive_delay_seconds: Seconds = 60.0
    #: What others wait after `archive_role_seconds`, for what the one before may have under way.
    archive_grace_seconds: Annotated[float, Meta(gt=0, le=3600)] = 5.0
    #: Between two batches, when little is due.
    archive_pause_idle_seconds: Annotated[float, Meta(gt=0, le=3600)] = 1.0
    #: Between two batches.
    archive_pause_seconds: Annotated[float, Meta(ge=0, le=3600)] = 0.0
    #: How long one process archives before another may.
    archive_role_seconds: Annotated[float, Meta(ge=1, le=3600)] = 60.0
    #: How long the store keeps what the archive has, too, since it was last asked for.
    cache_seconds: Seconds = 300.0
    #: What a cancel, or a deadline that has passed, leaves a step that runs.
    cancel_grace_seconds: Seconds = 30.0
    #: Units of atomicity that primaries of a cluster can share; fixed when the data set is created.
    #: 0: the number that the data set has; 16 for a new one.
    cells: Annotated[int, Meta(ge=0, le=65536)] = 0
    #: Pipelines that may call each other at one time, by Child and Parallel together; a step that
    #: calls one more fails with `transaction.tree-too-deep`.
    depth_max: Annotated[int, Meta(ge=1, le=100)] = 32
    #: Descendants at all levels that one Parallel of a transaction without a parent may have; a
    #: step that asks for more fails with `transaction.tree-too-large`.
    descendants_max: Annotated[int, Meta(ge=1, le=10_000_000)] = 100_000
    #: How long the external id of what is complete stays taken.
    external_id_seconds: Seconds = 172_800.0
    #: What a stopping process leaves steps that run; what has not ended then runs elsewhere.
    grace_seconds: Seconds = 5.0
    #: The node group whose queues this process serves.
    group: Annotated[str, Meta(pattern=r"^[0-9a-z][0-9a-z_-]{0,62}$")] = "master"
    #: What is claimed is another's, if its worker was not heard for this long.
    lease_seconds: Annotated[float, Meta(ge=1, le=3600)] = 10.0
    #: What is due and in the archive is loaded by another, if it was not loaded for this long.
    load_pause_seconds: Annotated[float, Meta(ge=1, le=60)] = 30.0
    #: Claimed ahead of those that run, so that no worker waits for the store.
    prefetch: Annotated[int, Meta(ge=0, le=10_000)] = 200
    #: Load the app anew when one of its files changes; `dev` says yes.
    reload: bool = False
    #: How often a step that runs alone may take its process down; once more ends its transaction.
    rescues_max: Count = 3
    #: Larger states are refused: data, outputs and journal of a transaction together.
    state_bytes_max: Annotated[int, Meta(ge=1024, le=8_388_608)] = 1_048_576
    #: The most that a step can ask for by its `timeout`; one that asks for nothing has 180 s.
    step_seconds_max: Seconds = 3600.0
    #: Steps that run at a time.
    workers: Annotated[int, Meta(ge=1, le=10_000)] = 100


class ArchiveConfig(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The database that keeps what has left the store."""

    #: Days for which it keeps what has ended; 0: for ever.
    retention_days: Annotated[float, Meta(ge=0, le=36500)] = 0
    #: `postgresql://…`; empty = a file in the data directory.
    url: str = ""


class WebhookConfig(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Replies of transactions: webhooks, and messages of channels and topics."""

    #: All attempts, the first included; then it is given up.
    attempts: Annotated[int, Meta(ge=1, le=1000)] = 8
    #: How long a URL is left alone that has failed too often.
    disable_seconds: Seconds = 300.0
    #: Failures in a row of one URL, over all processes, that make it rest; 0: never.
    fail_limit: Annotated[int, Meta(ge=0)] = 10
    #: The time in which they count.
    fail_period_seconds: Seconds = 120.0
    #: The wait before the second attempt.
    first_wait_seconds: Annotated[float, Meta(ge=0, le=86400)] = 5.0
    #: Each wait is this much longer.
    multiplier: Annotated[float, Meta(ge=1, le=100)] = 2.0
    #: While all workers are busy; 0: until one is free.
    pause_busy_seconds: Annotated[float, Meta(ge=0, le=60)] = 0.0
    #: How long a process sleeps at most without a hint that something has come.
    pause_idle_seconds: Annotated[float, Meta(gt=0, le=60)] = 10.0
    #: Between two claims for one receiver, at least.
    pause_seconds: Annotated[float, Meta(ge=0, le=60)] = 0.0
    #: A file with secrets that requests are signed with, one in a line; empty: they are not signed.
    secret_file: str = ""
    #: What one attempt may take.
    timeout_seconds: Annotated[float, Meta(gt=0, le=600)] = 30.0
    #: The longest wait between two attempts.
    wait_seconds_max: Annotated[float, Meta(gt=0, le=2592000)] = 3600.0
    #: Attempts that this process has under way at a time; 0: it sends none.
    workers: Annotated[int, Meta(ge=0, le=10_000)] = 100


#: Beginning of list names. It has no braces, because they would change the slot of a list.
Prefix = Annotated[str, Meta(pattern=r"^[^{}\s]{1,100}$")]
_LETTERS = r"[^{}\x00-\x1f\x7f]"
#: Name of a list, or its beginning. Braces must form one hash tag. Empty: the default.
Topic = Annotated[
    str, Meta(pattern=rf"^{_LETTERS}*(\{{{_LETTERS}+\}}{_LETTERS}*)?$", max_length=400)
]


class EventRule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A list of events, and the topic that they are produced to."""

    #: Name of the list, such as `acapy-record-base`.
    list: Annotated[str, Meta(pattern=r"^[^{}\s]{1,512}$")]
    topic: str
    project: str = "default"


class DoorRule(
    msgspec.Struct, frozen=True, kw_only=False, array_like=True, forbid_unknown_fields=True
):
    """A door of the relay, written as `["http", "127.0.0.1", 8071]`."""

    kind: Literal["http", "ws"]
    host: str
    port: Port


class RelayConfig(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`waystation relay`: the door of agents."""

    #: How long the relay waits for a direct response.
    answer_seconds: Annotated[float, Meta(gt=0, le=60)] = 15.0
    #: Largest envelope; a larger one is answered 413, or closes its WebSocket.
    body_bytes_max: Annotated[int, Meta(ge=1, le=64 * 1_048_576)] = 1_048_576
    #: Where it listens, each as `[kind, host, port]`; kinds are `http` and `ws`.
    doors: tuple[DoorRule, ...] = (
        DoorRule("http", "127.0.0.1", 8071),
        DoorRule("ws", "127.0.0.1", 8081),
    )
    #: List of direct responses: the plugin's `acapy_direct_resp_topic`. Empty: the relay reads
    #: `<topic_prefix>_inbound_direct_resp` and `<topic_prefix>_inbound_direct_response`.
    direct_response_topic: Topic = ""
    #: A WebSocket that is silent for longer, with nothing under way, is closed.
    idle_seconds: Seconds = 15.0
    #: Beginning of the lists of agents, `<inbound_topic>_<recipient key>`: the plugin's
    #: `acapy_inbound_topic`. Empty: `<topic_prefix>_inbound`.
    inbound_topic: Topic = ""
    #: Whether agents with the redis-events plugin serve the pool, if the relay has to make it.
    mirror: bool = False
    #: The pool that envelopes wait in; it is made where it is missing.
    pool: str = "agents"
    project: str = "default"
    #: Key that the status door asks for in the header `access_token`; empty: no status door.
    status_api_key: str = ""
    #: Where the status door listens.
    status_host: str = "127.0.0.1"
    status_port: Port = 8091
    #: Beginning of all list names that are not set.
    topic_prefix: Prefix = "acapy"

    @property
    def inbound(self) -> str:
        """Beginning of the names of the agents' lists."""
        return self.inbound_topic or f"{self.topic_prefix}_inbound"

    @property
    def direct_responses(self) -> tuple[str, ...]:
        """Names of the lists that agents write direct responses to."""
        if self.direct_response_topic:
            return (self.direct_response_topic,)
        # The plugin's agents and its relay use different names.
        prefix = f"{self.topic_prefix}_inbound"
        return (f"{prefix}_direct_resp", f"{prefix}_direct_response")


class DelivererConfig(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`waystation deliverer`: sends what agents put into their outbound list."""

    #: Messages that are sent at once.
    concurrency: Annotated[int, Meta(ge=1, le=1024)] = 64
    #: Lists of events that are produced to topics, each a `[[deliverer.events]]` table.
    events: tuple[EventRule, ...] = ()
    #: List of outbound messages: the plugin's `acapy_outbound_topic`. The retry set is
    #: `<outbound_topic>_retry`. Empty: `<topic_prefix>_outbound`.
    outbound_topic: Topic = ""
    #: A message whose endpoint is ill or busy for longer is a dead letter.
    patience_seconds: Seconds = 86_400.0
    #: Key that the status door asks for in the header `access_token`; empty: no status door.
    status_api_key: str = ""
    #: Where the status door listens.
    status_host: str = "127.0.0.1"
    status_port: Port = 8092
    #: An attempt that has no answer by then has failed.
    timeout_seconds: Seconds = 10.0
    #: Beginning of the names of list and retry set, unless `outbound_topic` is set.
    topic_prefix: Prefix = "acapy"

    @property
    def outbound(self) -> str:
        """Name of the list of outbound messages."""
        return self.outbound_topic or f"{self.topic_prefix}_outbound"


class Config(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything that a process of Waystation can be told."""

    admin: AdminConfig = AdminConfig()
    archive: ArchiveConfig = ArchiveConfig()
    auth: AuthConfig = AuthConfig()
    #: Projects, keys and definitions: `postgresql://…`; empty = a file in the data directory.
    catalogue: str = ""
    channels: ChannelConfig = ChannelConfig()
    #: Where the embedded store, the catalogue and the lake live.
    data: str = ".waystation"
    deliverer: DelivererConfig = DelivererConfig()
    delivery: DeliveryConfig = DeliveryConfig()
    history: HistoryConfig = HistoryConfig()
    http: HttpConfig = HttpConfig()
    log: LogConfig = LogConfig()
    pools: PoolConfig = PoolConfig()
    relay: RelayConfig = RelayConfig()
    store: StoreConfig = StoreConfig()
    #: Test mode: time can be moved. Embedded store only.
    time_machine: bool = False
    topics: TopicConfig = TopicConfig()
    subscriptions: SubscriptionConfig = SubscriptionConfig()
    transactions: TransactionConfig = TransactionConfig()
    webhooks: WebhookConfig = WebhookConfig()

    @property
    def data_dir(self) -> Path:
        """The data directory as an absolute path."""
        return Path(self.data).expanduser().absolute()
