"""The switches of a transaction: signals with a name and a value, set from outside.

They are kept as one text, `approved="yes",!count=3`: scalars as JSON, and a `!` before what no step
has acknowledged yet. Scripts take it apart at commas, so a value has none, and no blanks.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import msgspec

from waystation.errors import InvalidInputError, SwitchInvalidError
from waystation.transactions.outcomes import require_switch

#: What a switch can be set to.
Scalar = str | int | float | bool
#: Characters of a value, as it is written.
VALUE_LENGTH_MAX = 32
#: Of one transaction, so that what every claim reads stays small.
SWITCHES_MAX = 100
#: Ours begin with it; nobody can name, set or see them.
OURS = "$"
#: `<place>:<token>` of the newest callback; a step that has asked somebody waits for it.
CALLBACK_SWITCH = "$callback"

_RULE = (
    f"Use true, false, a number, or a text of at most {VALUE_LENGTH_MAX} characters"
    " without blanks and commas."
)


def check_switch(name: str) -> str:
    """Returns the name of a switch, or raises an error that tells the rule."""
    try:
        return require_switch(name)
    except InvalidInputError as error:
        raise SwitchInvalidError(error.message, field="switch", hint=error.hint) from error


def encode_value(value: Scalar) -> str:
    """A value as it is kept, or an error that tells the rule."""
    if not isinstance(value, str | int | float | bool):
        raise SwitchInvalidError(f"A switch cannot be a {type(value).__name__}.", hint=_RULE)
    if isinstance(value, float) and not math.isfinite(value):
        raise SwitchInvalidError("A switch cannot be a number that is none.", hint=_RULE)
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise SwitchInvalidError("A number of more than 64 bits is too large.", hint=_RULE)
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    if len(text) > VALUE_LENGTH_MAX:
        raise SwitchInvalidError(f"A value of {len(text)} characters is too long.", hint=_RULE)
    if "," in text or not text.isprintable() or any(map(str.isspace, text)):
        raise SwitchInvalidError(f"{text!r} has a blank or a comma.", hint=_RULE)
    return msgspec.json.encode(value).decode()


def parse_switches(text: bytes) -> dict[str, Scalar]:
    """The switches that are set, by name; without our own."""
    found: dict[str, Scalar] = {}
    for part in text.decode().split(","):
        name, _, value = part.removeprefix("!").partition("=")
        if value and not name.startswith(OURS):
            found[name] = msgspec.json.decode(value)
    return found


def seen_text(seen: Mapping[str, Scalar | None]) -> str:
    """What a step has looked at, as `Sleep.acknowledged` has it; None is one that was not set."""
    return ",".join(
        name if value is None else f"{name}={msgspec.json.encode(value).decode()}"
        for name, value in seen.items()
    )
