"""Options of topics and subscriptions as people write them: name=value, JSON where it is that."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from waystation.errors import InvalidInputError


def read_options(
    texts: list[str] | None, known: Mapping[str, object], inner: Mapping[str, Mapping[str, object]]
) -> dict[str, Any]:
    """The options by name; those of an option that has its own, as outer.inner=value."""
    options: dict[str, Any] = {}
    for text in texts or ():
        name, equals, value = text.partition("=")
        if not equals:
            raise InvalidInputError(f"{text!r} is no option.", hint="Give it as name=value.")
        outer, dot, part = name.partition(".")
        names = inner.get(outer, {}) if dot else known
        if (part if dot else name) not in names:
            every = [*known, *(f"{each}.{one}" for each, some in inner.items() for one in some)]
            raise InvalidInputError(
                f"There is no option {name!r}.", hint=f"There are {', '.join(every)}."
            )
        try:
            chosen = msgspec.json.decode(value)
        except msgspec.DecodeError:
            chosen = value
        if dot:
            whole = options.setdefault(outer, {})
            if not isinstance(whole, dict):
                raise InvalidInputError(f"{outer} is given as a whole and in parts.")
            whole[part] = chosen
        else:
            options[name] = chosen
    return options
