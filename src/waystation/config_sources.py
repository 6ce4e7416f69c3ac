"""Where the values of settings come from: the settings file, the environment, flags.

A layer maps the name of a setting to its value and its origin. What a name means, and whether its
value is good, is decided in `waystation.config`; here only names that it does not know are
refused, wherever they stand.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

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
