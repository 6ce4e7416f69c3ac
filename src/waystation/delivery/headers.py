"""Headers that a user may set on outgoing requests: checked when they are set."""

from __future__ import annotations

import re
from collections.abc import Iterable

from waystation.errors import InvalidInputError

_NAME = re.compile(r"[0-9A-Za-z!#$%&'*+.^_`|~-]{1,100}")
_VALUE = re.compile(r"[\x20-\x7e\t]{0,4096}")
_HEADERS_MAX = 50
#: These are ours to set: they frame the message, name the host, or carry the signature.
_OURS = frozenset(
    {
        "authorization",
        "connection",
        "content-length",
        "expect",
        "host",
        "keep-alive",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)


def check_headers(headers: Iterable[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    """Returns the headers, or raises with the name of the one that cannot be sent."""
    checked = tuple(headers)
    if len(checked) > _HEADERS_MAX:
        raise InvalidInputError(f"At most {_HEADERS_MAX} headers can be set.", field="headers")
    for name, value in checked:
        lowered = name.lower()
        if not _NAME.fullmatch(name):
            raise InvalidInputError(f"{name[:40]!r} is no header name.", field="headers")
        if lowered in _OURS or lowered.startswith("webhook-"):
            hint = "Put its value into a file, as a secret." if lowered == "authorization" else ""
            told = f"The header {lowered} is not set here."
            raise InvalidInputError(told, field="headers", hint=hint)
        if not _VALUE.fullmatch(value):
            raise InvalidInputError(
                f"The value of header {lowered} must be printable ASCII.", field="headers"
            )
    return checked


def check_authorization(lines: list[str]) -> str:
    """The value of an Authorization header, from the one line of its file; empty without a file."""
    if not lines:
        return ""
    if len(lines) > 1 or not _VALUE.fullmatch(lines[0]):
        # Without the value: it is a secret.
        raise InvalidInputError("The Authorization must be one line of printable ASCII.")
    return lines[0]
