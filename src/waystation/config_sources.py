"""Sources of settings: defaults < file < environment < flags.

Each source yields values by the dotted name of the setting, with their origin. A later source
overrides an earlier one. Unknown names are rejected in every source. `waystation.config` defines
names, types and limits.

A value can be in a file of its own, which suits secrets: `WAYSTATION_STORE_URL_FILE=/run/secrets/x`
in the environment, or `url_file` in the settings file. In the environment and in such files, lists
are separated by commas or blanks, and rules are JSON.
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

from waystation.config import REDACTED, ChannelRule, Config, Section
from waystation.errors import SettingsError

#: Form of the text of a setting: unchanged, as a list separated by commas or blanks, or as JSON.
TextForm = Literal["plain", "list", "json"]
#: Origin of a setting that has the default of a command.
COMMAND_DEFAULT = "default of this command"
#: Value and origin of settings, by name.
Layer = dict[str, tuple[Any, str]]

#: Variables that clients and the command line read; they are not settings of a server.
_CLIENT_VARIABLES = {
    "WAYSTATION_CONFIG",
    "WAYSTATION_KEY",
    "WAYSTATION_KEY_FILE",
    "WAYSTATION_URL",
}


class SettingKind(msgspec.Struct, frozen=True):
    """Form of the text of a setting, and whether its value is secret."""

    form: TextForm
    is_secret: bool


class LoadedConfig(msgspec.Struct, frozen=True):
    """A configuration with the origin of each value."""

    config: Config
    #: Origin by name; settings that have their default are missing.
    origins: dict[str, str]

    def rows(self) -> Iterator[tuple[str, Any, str]]:
        """Yield name, value and origin of each setting by name, with secrets replaced."""
        for name, setting in sorted(_NAMES.items()):
            value: Any = self.config
            for part in name.split("."):
                value = getattr(value, part)
            if name == "channels.rules":
                value = [rule.redacted() for rule in value]
            elif setting.is_secret and value:
                value = REDACTED
            elif isinstance(value, tuple):
                value = msgspec.to_builtins(value)
            yield name, value, self.origins.get(name, "default")


def load_config(
    *,
    defaults: Mapping[str, Any] | None = None,
    file: Path | None = None,
    environment: Mapping[str, str] | None = None,
    flags: Mapping[str, Any] | None = None,
) -> LoadedConfig:
    """Merge and validate all sources.

    `defaults` are those of one command; they replace the general defaults. `defaults` and `flags`
    use dotted names, such as `http.port`. A flag that is None was not given.
    """
    merged: Layer = {
        **{name: (value, COMMAND_DEFAULT) for name, value in (defaults or {}).items()},
        **_read_file(file),
        **_read_environment(environment or {}),
        **_read_flags(flags or {}),
    }
    origins = {name: origin for name, (_, origin) in merged.items()}
    values = {name: value for name, (value, _) in merged.items()}
    return LoadedConfig(config=_validate(values, origins), origins=origins)


# -- Sources -----------------------------------------------------------------------------------


def _read_file(file: Path | None) -> Layer:
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
        if isinstance(value, dict) and any(name.startswith(f"{key}.") for name in _NAMES):
            entries = {f"{key}.{inner}": each for inner, each in value.items()}
        for entry, each in entries.items():
            if entry in _NAMES:
                _add(layer, entry, each, origin)
            elif (name := entry.removesuffix("_file")) in _NAMES:
                _add(layer, name, _read_value_file(name, str(each), origin), origin)
            else:
                raise _unknown(f"The {origin}", repr(entry), _NAMES)
    return layer


def _read_environment(environment: Mapping[str, str]) -> Layer:
    by_variable = {f"WAYSTATION_{name.replace('.', '_').upper()}": name for name in _NAMES}
    layer: Layer = {}
    for variable, text in sorted(environment.items()):
        if not variable.startswith("WAYSTATION_") or variable in _CLIENT_VARIABLES:
            continue
        origin = f"environment {variable}"
        if (name := by_variable.get(variable)) is not None:
            _add(layer, name, _parse_text(text, _NAMES[name].form, origin), origin)
        elif (name := by_variable.get(variable.removesuffix("_FILE"))) is not None:
            _add(layer, name, _read_value_file(name, text, origin), origin)
        else:
            raise _unknown("The environment", variable, by_variable)
    return layer


def _read_flags(flags: Mapping[str, Any]) -> Layer:
    layer: Layer = {}
    for name, value in flags.items():
        if value is None:
            continue
        if name not in _NAMES:
            raise _unknown("A flag", repr(name), _NAMES)
        layer[name] = (value, "flag")
    return layer


def _add(layer: Layer, name: str, value: Any, origin: str) -> None:
    if name in layer:
        raise SettingsError(
            f"{origin} sets {name} twice: directly and by a file.", hint="Remove one of the two."
        )
    layer[name] = (value, origin)


def _unknown(source: str, name: str, known: Collection[str]) -> SettingsError:
    words = {*known, *(each.partition(".")[0] for each in known)}
    near = difflib.get_close_matches(name.strip("'"), sorted(words), n=1)
    return SettingsError(
        f"{source} has {name}, which is not a setting.",
        hint=f"Did you mean {near[0]}?" if near else "See docs/reference/settings.md for all.",
    )


def _read_value_file(name: str, path: str, origin: str) -> Any:
    try:
        text = Path(path).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{origin} names a file that cannot be read: {error}.") from error
    return _parse_text(text, _NAMES[name].form, origin)


def _parse_text(text: str, form: TextForm, origin: str) -> Any:
    """Split a list or decode JSON; `_validate` checks the value."""
    if form == "list":
        return [part for part in re.split(r"[\s,]+", text) if part]
    if form == "json":
        try:
            return msgspec.json.decode(text.encode(errors="replace"))
        except (msgspec.DecodeError, RecursionError) as error:
            # Omit the text of the library, because it may contain a part of a secret.
            raise SettingsError(f"{origin} is not valid JSON.") from error
    return text


# -- Names and types ---------------------------------------------------------------------------


def _find_names() -> dict[str, SettingKind]:
    names: dict[str, SettingKind] = {}
    for field in msgspec.structs.fields(Config):
        if isinstance(field.type, type) and issubclass(field.type, Section):
            for inner in msgspec.structs.fields(field.type):
                names[f"{field.name}.{inner.name}"] = _describe(inner.type)
        else:
            names[field.name] = _describe(field.type)
    return names


def _describe(kind: Any) -> SettingKind:
    form: TextForm = "plain"
    match get_origin(kind):
        case builtins.list:
            form = "list"
        case builtins.tuple | builtins.dict:
            form = "json"
    return SettingKind(form, _is_secret(kind))


def _is_secret(kind: Any) -> bool:
    """Return True for `Secret`, and for lists of secrets."""
    metas = [each for each in getattr(kind, "__metadata__", ()) if isinstance(each, msgspec.Meta)]
    if any((each.extra or {}).get("secret") for each in metas):
        return True
    return any(_is_secret(each) for each in get_args(kind))


_NAMES = _find_names()


# -- Validation --------------------------------------------------------------------------------


def _validate(values: dict[str, Any], origins: dict[str, str]) -> Config:
    tree: dict[str, Any] = {}
    for name, value in values.items():
        section, _, key = name.rpartition(".")
        (tree.setdefault(section, {}) if section else tree)[key] = value
    if "channels.rules" in values:
        tree["channels"]["rules"] = _rules(values["channels.rules"], origins["channels.rules"])
    try:
        # Convert leniently, because the environment has only strings.
        return msgspec.convert(tree, Config, strict=False)
    except msgspec.ValidationError as error:
        text = str(error)
        # Cut the index off: `$.http.cors_origins[0]` is the setting http.cors_origins.
        name = text.rpartition("$.")[2].rstrip("`").partition("[")[0]
        raise SettingsError(
            f"Setting {name} ({origins.get(name, '')}): {text.partition(' - at')[0]}.",
            hint=_choices(name),
        ) from error


def _choices(name: str) -> str:
    """Return a hint with the values of a setting that has an enumeration; else an empty text."""
    kind: Any = Config
    for part in name.split("."):
        kind = get_type_hints(kind).get(part) if isinstance(kind, type) else None
    values = get_args(kind) if get_origin(kind) is Literal else ()
    return f"Use {' or '.join(map(str, values))}." if values else ""


def _rules(value: Any, origin: str) -> list[ChannelRule]:
    """Convert channel rules one by one, so that an error can name the number of the rule."""
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
