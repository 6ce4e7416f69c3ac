"""Who an envelope is for, from what can be read of it without any key.

DIDComm v1 has its recipients in the protected header, v2 (a JWE) beside it. Several recipients are
one composite key, their names in their order with commas between them: an agent of the plugin asks
for that very name. Nothing else is looked at, and nothing that a stranger sends is more than an
`EnvelopeInvalidError` that says what is wrong.
"""

from __future__ import annotations

import binascii
from typing import Any

import msgspec

from waystation.errors import EnvelopeInvalidError
from waystation.pools.recipient import KEY_BYTES_MAX

#: What a sender says that wants the answer where it asked.
_WANTING = frozenset({"all", "thread"})


class Recipients(msgspec.Struct, frozen=True):
    """Whom an envelope is for, and whether its sender wants the answer at once."""

    key: str
    wants_answer: bool


class _Outer(msgspec.Struct, frozen=True):
    protected: Any = None
    recipients: Any = None
    header: Any = None
    transport: Any = msgspec.field(default=None, name="~transport")
    return_route: Any = None


class _Named(msgspec.Struct, frozen=True):
    kid: str


class _Recipient(msgspec.Struct, frozen=True):
    header: _Named


class _Usual(msgspec.Struct, frozen=True):
    """A protected header as v1 has it; the rest of it is passed over, which is half the work."""

    recipients: list[_Recipient]


_read_outer = msgspec.json.Decoder(_Outer).decode
_read_usual = msgspec.json.Decoder(_Usual).decode
_read_any = msgspec.json.Decoder().decode


def recipient_key(body: bytes) -> Recipients:
    """The recipients of an envelope, or why it has none."""
    try:
        outer = _read_outer(body)
    except msgspec.ValidationError as error:
        raise _invalid("it is no JSON object") from error
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise _invalid("it is no JSON") from error
    transport = outer.transport
    route = transport.get("return_route") if isinstance(transport, dict) else outer.return_route
    wants_answer = isinstance(route, str) and route in _WANTING
    protected = _protected(outer.protected)
    key = ",".join(_usual_kids(protected) or _kids(_recipients(outer, protected)))
    if not key.isprintable():
        raise _invalid("a recipient's kid has letters that cannot be printed")
    if len(key.encode()) > KEY_BYTES_MAX:
        raise _invalid(f"its recipients' kids have more than {KEY_BYTES_MAX} bytes")
    return Recipients(key, wants_answer)


def _usual_kids(protected: bytes) -> list[str]:
    """The recipients of v1; empty where it is not as usual."""
    try:
        kids = [each.header.kid for each in _read_usual(protected).recipients]
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return []
    return kids if all(kids) else []


def _recipients(outer: _Outer, protected: bytes) -> list[Any]:
    found: Any = _header(protected).get("recipients")
    if found is None:
        found = outer.recipients
    if found is None and outer.header is not None:
        # A JWE for one recipient may be written flat.
        found = [{"header": outer.header}]
    if not isinstance(found, list) or not found:
        raise _invalid("it has no recipients")
    return found


def _protected(text: Any) -> bytes:
    if not isinstance(text, str):
        raise _invalid("it has no protected header")
    bare = text.rstrip("=").replace("-", "+").replace("_", "/")
    try:
        return binascii.a2b_base64(bare + "=" * (-len(bare) % 4), strict_mode=True)
    except (binascii.Error, ValueError) as error:
        raise _invalid("its protected header is no base64") from error


def _header(protected: bytes) -> dict[str, Any]:
    try:
        header = _read_any(protected)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise _invalid("its protected header is no JSON") from error
    if not isinstance(header, dict):
        raise _invalid("its protected header is no JSON object")
    return header


def _kids(recipients: list[Any]) -> list[str]:
    kids = []
    for each in recipients:
        header = each.get("header") if isinstance(each, dict) else None
        kid = header.get("kid") if isinstance(header, dict) else None
        if not isinstance(kid, str) or not kid:
            raise _invalid("a recipient has no kid")
        kids.append(kid)
    return kids


def _invalid(problem: str) -> EnvelopeInvalidError:
    return EnvelopeInvalidError(f"This is no DIDComm envelope: {problem}.", field="body")
