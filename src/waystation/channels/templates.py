"""Templates in channel rules: `https://crm.example/{{.channel.shop}}`, filled from the pattern.

The names are the named groups of the rule's pattern. A template that names anything else is refused
at start, so that no message ever meets it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from waystation.errors import SettingsError

_FIELD = re.compile(r"\{\{\s*\.channel\.([A-Za-z_][A-Za-z0-9_]*)\s*\}\}")


def check_template(template: str, names: set[str], *, where: str) -> None:
    """Raises SettingsError unless every field of the template is one of `names`."""
    left = _FIELD.sub("", template)
    if "{{" in left or "}}" in left:
        raise SettingsError(
            f"{where}: {template!r} is malformed.", hint="A field is written {{.channel.name}}."
        )
    unknown = sorted(set(_FIELD.findall(template)) - names)
    if unknown:
        raise SettingsError(
            f"{where}: {template!r} names {', '.join(unknown)}, but the pattern has no such group.",
            hint="Name a group with (?P<name>…).",
        )


def fill_template(template: str, values: Mapping[str, str]) -> str:
    """The template with its fields replaced."""
    return _FIELD.sub(lambda match: values[match.group(1)], template)


def has_fields(template: str) -> bool:
    """Whether the template is different for different channels."""
    return _FIELD.search(template) is not None


def sample_fills(template: str) -> list[str]:
    """The template filled with a word and with a number: a check before there is a channel."""
    return [_FIELD.sub(sample, template) for sample in ("x", "1")]
