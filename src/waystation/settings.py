"""All settings, in one typed object: defaults < TOML file < environment < flags.

A setting `http.port` is `port` in the file's table `[http]`, `WAYSTATION_HTTP_PORT` in the
environment, and may have a flag. Unknown names are rejected by name, wherever they stand.
Secrets can come from a file: `WAYSTATION_STORE_URL_FILE=/run/secrets/store`, or `url_file` in
the TOML file.
"""

from __future__ import annotations

import ipaddress
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from waystation.channel_settings import ChannelRule
from waystation.errors import SettingsError

Durability = Literal["memory", "disk"]

#: Names in the environment that are not settings of a server; clients and the CLI use them.
_OTHER_ENVIRONMENT = {
    "WAYSTATION_CONFIG",
    "WAYSTATION_KEY",
    "WAYSTATION_KEY_FILE",
    "WAYSTATION_URL",
}

#: Settings that must never be shown.
SECRETS = frozenset({"store.url"})

Port = Annotated[int, Meta(ge=0, le=65535)]
Count = Annotated[int, Meta(ge=1)]
Seconds = Annotated[float, Meta(gt=0, le=365 * 86400)]


class _Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table of the settings file."""


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
    host: str = "127.0.0.1"
    #: Open connections; 0 = derived from the limit of file descriptors.
    connections_max: Annotated[int, Meta(ge=0)] = 0
    #: Whether /metrics answers without a key.
    metrics_public: bool = False
    #: Put before every path, for servers behind a proxy that keeps its prefix.
    path_prefix: str = ""
    #: Longer long polls are silently cut to this, as in DSPS.
    poll_seconds_max: Seconds = 30.0
    port: Port = 7070
    #: A request that is not fully sent by then is answered 408.
    read_seconds_max: Seconds = 10.0

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
    #: `disk`: a reply comes after the fsync. `memory`: up to a second can be lost in a power cut.
    durability: Durability = "disk"
    #: Accept a store that keeps nothing over a restart.
    ephemeral: bool = False
    #: redis://, rediss:// or unix://; empty = embedded.
    url: str = ""


class AuthSettings(_Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Who may come in."""

    #: Serve every request as project `default`, without a key.
    insecure: bool = False


class ChannelSettings(_Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """HTTP pub/sub channels."""

    #: How long a message, and a subscriber that does not come back, is kept.
    expire_seconds: Seconds = 1800.0
    #: One fetch answers at most about this much, and says that there is more.
    fetch_bytes_max: Count = 8_388_608
    #: A larger `max` is answered 400.
    fetch_messages_max: Count = 10_000
    #: Rules by pattern, each a `[[channels.rules]]` table; see docs/guides/channel-rules.md.
    rules: tuple[ChannelRule, ...] = ()


class DeliverySettings(_Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Outgoing requests: webhooks and everything that is delivered."""

    #: Networks outside the public internet that requests may reach, such as `10.1.0.0/16`.
    allowed_networks: list[str] = []
    #: Whether requests may reach this machine itself; `dev` says yes.
    loopback: bool = False


class LogSettings(_Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the process writes about itself, to standard error."""

    #: `auto` = pretty on a terminal, JSON lines otherwise.
    format: Literal["auto", "json", "pretty"] = "auto"
    level: Literal["debug", "info", "warning", "error"] = "info"


class Settings(_Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything that a process of Waystation can be told."""

    auth: AuthSettings = AuthSettings()
    channels: ChannelSettings = ChannelSettings()
    #: Where the embedded store, the catalogue and the lake live.
    data: str = ".waystation"
    delivery: DeliverySettings = DeliverySettings()
    http: HttpSettings = HttpSettings()
    log: LogSettings = LogSettings()
    store: StoreSettings = StoreSettings()
    #: Test mode: time can be moved. Embedded store only.
    time_machine: bool = False

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
            shown = "•••" if name in SECRETS and value else value
            yield name, shown, self.origins.get(name, "default")

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
    layers = [
        _from_command(defaults or {}),
        _from_file(file),
        _from_environment(environment or {}),
        _from_flags(flags or {}),
    ]
    for layer in layers:
        for name, (value, origin) in layer.items():
            values[name] = value
            origins[name] = origin
    return LoadedSettings(settings=_validated(values, origins), origins=origins)


_Layer = dict[str, tuple[Any, str]]


def _names() -> set[str]:
    names: set[str] = set()
    for field in msgspec.structs.fields(Settings):
        if isinstance(field.type, type) and issubclass(field.type, _Section):
            names |= {f"{field.name}.{inner.name}" for inner in msgspec.structs.fields(field.type)}
        else:
            names.add(field.name)
    return names


def _from_file(file: Path | None) -> _Layer:
    if file is None:
        return {}
    try:
        tree = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise SettingsError(f"The settings file {file} cannot be read: {error}.") from error
    layer: _Layer = {}
    origin = f"file {file}"
    for key, value in tree.items():
        entries = {key: value}
        if isinstance(value, dict) and any(name.startswith(f"{key}.") for name in _names()):
            entries = {f"{key}.{inner}": each for inner, each in value.items()}
        for entry, each in entries.items():
            name, resolved = _resolve(entry, each, suffix="_file", origin=origin)
            _add(layer, name, resolved, origin)
    return layer


def _from_environment(environment: Mapping[str, str]) -> _Layer:
    by_variable = {f"WAYSTATION_{name.replace('.', '_').upper()}": name for name in _names()}
    layer: _Layer = {}
    for variable, text in sorted(environment.items()):
        if not variable.startswith("WAYSTATION_") or variable in _OTHER_ENVIRONMENT:
            continue
        origin = f"environment {variable}"
        name = by_variable.get(variable)
        in_file = by_variable.get(variable.removesuffix("_FILE"))
        if name is not None:
            _add(layer, name, _from_text(name, text), origin)
        elif in_file is not None:
            secret = _read_secret(text, origin=origin)
            _add(layer, in_file, _from_text(in_file, secret), origin)
        else:
            raise SettingsError(
                f"The environment has {variable}, which is no setting.",
                hint="`waystation config show` lists the settings.",
            )
    return layer


def _add(layer: _Layer, name: str, value: Any, origin: str) -> None:
    if name in layer:
        raise SettingsError(f"{origin} gives {name} twice: as itself and in a file.")
    layer[name] = (value, origin)


def _from_command(defaults: Mapping[str, Any]) -> _Layer:
    return {name: (value, "default of this command") for name, value in defaults.items()}


def _from_flags(flags: Mapping[str, Any]) -> _Layer:
    layer: _Layer = {}
    for name, value in flags.items():
        if value is not None:
            known, resolved = _resolve(name, value, suffix="", origin="flag")
            layer[known] = (resolved, "flag")
    return layer


def _resolve(name: str, value: Any, *, suffix: str, origin: str) -> tuple[str, Any]:
    if name in _names():
        return name, value
    if suffix and name.endswith(suffix) and name.removesuffix(suffix) in _names():
        return name.removesuffix(suffix), _read_secret(str(value), origin=origin)
    raise SettingsError(
        f"{origin} has {name!r}, which is no setting.",
        hint="`waystation config show` lists the settings.",
    )


def _read_secret(path: str, *, origin: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{origin} names a file that cannot be read: {error}.") from error


def _from_text(name: str, value: str) -> Any:
    """A list in the environment is separated by commas; the rest is left to validation."""
    if name in ("http.cors_origins", "delivery.allowed_networks"):
        return [part.strip() for part in value.split(",") if part.strip()]
    return value


def _validated(values: dict[str, Any], origins: dict[str, str]) -> Settings:
    tree: dict[str, Any] = {}
    for name, value in values.items():
        section, _, key = name.rpartition(".")
        (tree.setdefault(section, {}) if section else tree)[key] = value
    try:
        # Not strict: the environment has only strings.
        return msgspec.convert(tree, Settings, strict=False)
    except msgspec.ValidationError as error:
        text = str(error)
        # Of a list, the setting's own name: `$.http.cors_origins[0]` is http.cors_origins.
        path = text.rpartition("$.")[2].rstrip("`").partition("[")[0]
        where = origins.get(path, "")
        raise SettingsError(f"Setting {path} ({where}): {text.partition(' - at')[0]}.") from error
