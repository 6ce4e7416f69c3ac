"""All settings, in one typed object: defaults < TOML file < environment < flags.

A setting `http.port` is `port` in the file's table `[http]`, `WAYSTATION_HTTP_PORT` in the
environment, and may have a flag. Unknown names are rejected by name, wherever they stand.
Secrets can come from a file: `WAYSTATION_STORE_URL_FILE=/run/secrets/store`, or `url_file` in
the TOML file. In the environment, and in such a file, a list is separated by commas or blanks,
and rules are JSON.
"""

from __future__ import annotations

import builtins
import ipaddress
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta

from waystation.acapy_settings import DelivererSettings, RelaySettings
from waystation.channel_settings import ChannelRule, shown_rule
from waystation.config_sources import Written, from_command, from_environment, from_file, from_flags
from waystation.delivery_settings import DeliverySettings
from waystation.errors import SettingsError
from waystation.history_settings import HistorySettings
from waystation.pool_settings import PoolSettings
from waystation.setting_section import Count, Seconds
from waystation.setting_section import Section as _Section
from waystation.subscription_settings import SubscriptionSettings
from waystation.topic_settings import TopicSettings
from waystation.transaction_settings import (
    ArchiveSettings,
    TransactionSettings,
    WebhookSettings,
)

Durability = Literal["memory", "disk"]

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


class HttpSettings(_Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
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


class StoreSettings(_Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
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


class AuthSettings(_Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Who may come in."""

    #: Serve every request as project `default`, without a key.
    insecure: bool = False


class AdminSettings(_Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The routes under `/admin` that DSPS has: revocation of tokens, levels of log lines."""

    #: Secrets of 16 letters or more that open `/admin`, beside admin keys of project `default`.
    bearer: list[Annotated[str, Meta(min_length=16, pattern=r"^[0-9A-Za-z._~+/=-]+$")]] = (
        msgspec.field(default_factory=list)
    )
    #: Networks that `/admin` can be reached from.
    networks: list[str] = msgspec.field(default_factory=lambda: list(PRIVATE_NETWORKS))


class ChannelSettings(_Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
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


class LogSettings(_Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the process writes about itself, to standard error."""

    #: `auto` = pretty on a terminal, JSON lines otherwise.
    format: Literal["auto", "json", "pretty"] = "auto"
    #: The least that is logged: `debug`, `info`, `warning` or `error`.
    level: Literal["debug", "info", "warning", "error"] = "info"


class Settings(_Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything that a process of Waystation can be told."""

    admin: AdminSettings = AdminSettings()
    archive: ArchiveSettings = ArchiveSettings()
    auth: AuthSettings = AuthSettings()
    #: Projects, keys and definitions: `postgresql://…`; empty = a file in the data directory.
    catalogue: str = ""
    channels: ChannelSettings = ChannelSettings()
    #: Where the embedded store, the catalogue and the lake live.
    data: str = ".waystation"
    deliverer: DelivererSettings = DelivererSettings()
    delivery: DeliverySettings = DeliverySettings()
    history: HistorySettings = HistorySettings()
    http: HttpSettings = HttpSettings()
    log: LogSettings = LogSettings()
    pools: PoolSettings = PoolSettings()
    relay: RelaySettings = RelaySettings()
    store: StoreSettings = StoreSettings()
    #: Test mode: time can be moved. Embedded store only.
    time_machine: bool = False
    topics: TopicSettings = TopicSettings()
    subscriptions: SubscriptionSettings = SubscriptionSettings()
    transactions: TransactionSettings = TransactionSettings()
    webhooks: WebhookSettings = WebhookSettings()

    @property
    def data_dir(self) -> Path:
        """The data directory as an absolute path."""
        return Path(self.data).expanduser().absolute()


def make_private(folder: Path) -> None:
    """Makes a folder of the data directory; what it makes, nobody but its owner may look into."""
    for each in (*reversed(folder.parents), folder):
        if not each.exists():
            each.mkdir(mode=0o700, exist_ok=True)


class LoadedSettings(msgspec.Struct, frozen=True):
    """Settings with the origin of each value."""

    settings: Settings
    origins: dict[str, str]

    def rows(self) -> Iterator[tuple[str, Any, str]]:
        """Yields (name, value fit to be shown, origin), in the order of names."""
        for name in sorted(_names()):
            value = self._value(name)
            if name == "channels.rules":
                value = [shown_rule(rule) for rule in value]
            elif name in SECRETS and value:
                value = "•••"
            elif isinstance(value, tuple):
                value = msgspec.to_builtins(value)
            yield name, value, self.origins.get(name, "default")

    def _value(self, name: str) -> Any:
        value: Any = self.settings
        for part in name.split("."):
            value = getattr(value, part)
        return value


def load_settings(
    *,
    defaults: Mapping[str, Any] | None = None,
    file: Path | None = None,
    environment: Mapping[str, str] | None = None,
    flags: Mapping[str, Any] | None = None,
) -> LoadedSettings:
    """Merges the layers and validates the result. `flags` maps setting names to values.

    `defaults` are those of a command, in the place of the general ones.
    """
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    names = _names()
    layers = [
        from_command(defaults or {}),
        from_file(file, names),
        from_environment(environment or {}, names),
        from_flags(flags or {}, names),
    ]
    for layer in layers:
        for name, (value, origin) in layer.items():
            values[name] = value
            origins[name] = origin
    return LoadedSettings(settings=_validated(values, origins), origins=origins)


def _names() -> dict[str, Written]:
    """Every setting, and how it is written in text."""
    names: dict[str, Written] = {}
    for field in msgspec.structs.fields(Settings):
        if isinstance(field.type, type) and issubclass(field.type, _Section):
            for inner in msgspec.structs.fields(field.type):
                names[f"{field.name}.{inner.name}"] = _written(inner.type)
        else:
            names[field.name] = _written(field.type)
    return names


def _written(kind: Any) -> Written:
    match get_origin(kind):
        case builtins.list:
            return "list"
        case builtins.tuple | builtins.dict:
            return "json"
    return "plain"


def _validated(values: dict[str, Any], origins: dict[str, str]) -> Settings:
    tree: dict[str, Any] = {}
    for name, value in values.items():
        section, _, key = name.rpartition(".")
        (tree.setdefault(section, {}) if section else tree)[key] = value
    if "channels.rules" in values:
        tree["channels"]["rules"] = _rules(values["channels.rules"], origins["channels.rules"])
    try:
        # Not strict: the environment has only strings.
        return msgspec.convert(tree, Settings, strict=False)
    except msgspec.ValidationError as error:
        text = str(error)
        # Of a list, the setting's own name: `$.http.cors_origins[0]` is http.cors_origins.
        path = text.rpartition("$.")[2].rstrip("`").partition("[")[0]
        where = origins.get(path, "")
        raise SettingsError(
            f"Setting {path} ({where}): {text.partition(' - at')[0]}.", hint=_choices(path)
        ) from error


def _choices(path: str) -> str:
    """The values of a setting that has only a few."""
    kind: Any = Settings
    for part in path.split("."):
        kind = get_type_hints(kind).get(part) if isinstance(kind, type) else None
    values = get_args(kind) if get_origin(kind) is Literal else ()
    return f"Use {' or '.join(map(str, values))}." if values else ""


def _rules(value: Any, origin: str) -> list[ChannelRule]:
    """One by one, so that an error can tell which of them it means."""
    if not isinstance(value, list | tuple):
        raise SettingsError(f"Setting channels.rules ({origin}): Expected a list of tables.")
    rules = []
    for number, each in enumerate(value, 1):
        try:
            rules.append(msgspec.convert(each, ChannelRule))
        except msgspec.ValidationError as error:
            raise SettingsError(
                f"Setting channels.rules, rule {number} ({origin}): {error}."
            ) from error
    return rules
