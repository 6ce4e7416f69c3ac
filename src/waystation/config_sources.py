"""Where the values of settings come from: the settings file, the environment, flags.

A layer maps the name of a setting to its value and its origin. What a name means, and whether its
value is good, is decided in `waystation.config`; here only names that it does not know are
refused, wherever they stand.
"""

from __future__ import annotations

import builtins
import difflib
import re
import tomllib
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import msgspec

from waystation.config import SECRETS, ChannelRule, Config, Section, shown_rule
from waystation.errors import SettingsError

#: How a setting is written in text, as in the environment: as it is, as a list that is separated by
#: commas or blanks, or as JSON.
Written = Literal["plain", "list", "json"]
Names = Mapping[str, Written]
Layer = dict[str, tuple[Any, str]]

#: Names in the environment that are not settings of a server; clients and the CLI use them.
_OTHER_ENVIRONMENT = {
    "WAYSTATION_CONFIG",
    "WAYSTATION_KEY",
    "WAYSTATION_KEY_FILE",
    "WAYSTATION_URL",
}


def from_file(file: Path | None, names: Names) -> Layer:
    """What the TOML file says; `url_file` names a file with the value of `url`."""
    if file is None:
        return {}
    try:
        tree = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise SettingsError(f"The settings file {file} cannot be read: {error}.") from error
    layer: Layer = {}
    origin = f"file {file}"
    for key, value in tree.items():
        entries = {key: value}
        if isinstance(value, dict) and any(name.startswith(f"{key}.") for name in names):
            entries = {f"{key}.{inner}": each for inner, each in value.items()}
        for entry, each in entries.items():
            if entry in names:
                _add(layer, entry, each, origin)
            elif (name := entry.removesuffix("_file")) in names:
                _add(layer, name, _from_named_file(name, str(each), names, origin), origin)
            else:
                raise _unknown(f"The {origin}", repr(entry), names)
    return layer


def from_environment(environment: Mapping[str, str], names: Names) -> Layer:
    """What variables say: WAYSTATION_HTTP_PORT, or WAYSTATION_STORE_URL_FILE for a file."""
    by_variable = {f"WAYSTATION_{name.replace('.', '_').upper()}": name for name in names}
    layer: Layer = {}
    for variable, text in sorted(environment.items()):
        if not variable.startswith("WAYSTATION_") or variable in _OTHER_ENVIRONMENT:
            continue
        origin = f"environment {variable}"
        name = by_variable.get(variable)
        in_file = by_variable.get(variable.removesuffix("_FILE"))
        if name is not None:
            _add(layer, name, _from_text(text, names[name], origin), origin)
        elif in_file is not None:
            _add(layer, in_file, _from_named_file(in_file, text, names, origin), origin)
        else:
            raise _unknown("The environment", variable, by_variable)
    return layer


def from_command(defaults: Mapping[str, Any]) -> Layer:
    """The defaults of one command."""
    return {name: (value, "default of this command") for name, value in defaults.items()}


def from_flags(flags: Mapping[str, Any], names: Names) -> Layer:
    """What flags say; one that was not given says nothing."""
    layer: Layer = {}
    for name, value in flags.items():
        if value is None:
            continue
        if name not in names:
            raise _unknown("A flag", repr(name), names)
        layer[name] = (value, "flag")
    return layer


def _add(layer: Layer, name: str, value: Any, origin: str) -> None:
    if name in layer:
        raise SettingsError(f"{origin} gives {name} twice: as itself and in a file.")
    layer[name] = (value, origin)


def _unknown(where: str, name: str, known: Collection[str]) -> SettingsError:
    words = {*known, *(each.partition(".")[0] for each in known)}
    near = difflib.get_close_matches(name.strip("'"), sorted(words), n=1)
    return SettingsError(
        f"{where} has {name}, which is no setting.",
        hint=f"Did you mean {near[0]}?" if near else "docs/reference/settings.md lists them all.",
    )


def _from_named_file(name: str, path: str, names: Names, origin: str) -> Any:
    try:
        text = Path(path).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{origin} names a file that cannot be read: {error}.") from error
    return _from_text(text, names[name], origin)


def _from_text(text: str, written: Written, origin: str) -> Any:
    """A list and JSON are taken apart; whether the value is good is seen later."""
    if written == "list":
        return [part for part in re.split(r"[\s,]+", text) if part]
    if written == "json":
        try:
            return msgspec.json.decode(text.encode(errors="replace"))
        except (msgspec.DecodeError, RecursionError) as error:
            # Not the library's words: they may repeat what is secret.
            raise SettingsError(f"{origin} is not JSON.") from error
    return text


class LoadedConfig(msgspec.Struct, frozen=True):
    """Config with the origin of each value."""

    settings: Config
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


def load_config(
    *,
    defaults: Mapping[str, Any] | None = None,
    file: Path | None = None,
    environment: Mapping[str, str] | None = None,
    flags: Mapping[str, Any] | None = None,
) -> LoadedConfig:
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
    return LoadedConfig(settings=_validated(values, origins), origins=origins)


def _names() -> dict[str, Written]:
    """Every setting, and how it is written in text."""
    names: dict[str, Written] = {}
    for field in msgspec.structs.fields(Config):
        if isinstance(field.type, type) and issubclass(field.type, Section):
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


def _validated(values: dict[str, Any], origins: dict[str, str]) -> Config:
    tree: dict[str, Any] = {}
    for name, value in values.items():
        section, _, key = name.rpartition(".")
        (tree.setdefault(section, {}) if section else tree)[key] = value
    if "channels.rules" in values:
        tree["channels"]["rules"] = _rules(values["channels.rules"], origins["channels.rules"])
    try:
        # Not strict: the environment has only strings.
        return msgspec.convert(tree, Config, strict=False)
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
    kind: Any = Config
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
