"""JSON that JavaScript and Go write and strict parsers refuse, and the limit of its nesting.

`JSON.stringify` writes half of a surrogate pair as an escape such as `\\ud83d`, and Go's JSON
scanner lets invalid UTF-8 pass inside strings. msgspec refuses both. The functions here check and
read such texts without changing a byte of them.

Decoders fail at about 1,000 levels of nesting, less the frames on the stack of the caller. The
limit here is lower, so that every process reads each accepted value in every place.
"""

from __future__ import annotations

import json
import re
from itertools import accumulate
from typing import Any, NoReturn

import msgspec

from waystation.errors import JsonTooDeepError

#: Limit of the nesting of a JSON value. A number, a string or null has no level.
JSON_DEPTH_MAX = 900
#: All bytes except quotes and brackets. They are deleted before the levels are counted.
_NO_BRACKETS = bytes(set(range(256)) - set(b'"[]{}'))
#: Replaces each opening bracket by +1 and each closing bracket by -1, as signed bytes.
_STEPS = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")
#: Replaces the backslash of a lone surrogate. Valid UTF-8 never has this byte.
_MARK = b"\xff"
#: Matches every escape in turn, so that the text after an escaped backslash is not taken for an
#: escape. Whole surrogate pairs match first; only a lone surrogate is captured.
_escapes = re.compile(
    rb"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
    rb"|(u[dD][89a-fA-F][0-9a-fA-F]{2})|.)",
    re.DOTALL,
)
_decode_any = msgspec.json.Decoder().decode
_decode_raw = msgspec.json.Decoder(msgspec.Raw).decode


def is_json(text: bytes, *, lone_surrogates: bool = True) -> bool:
    """Return True if the text is one JSON value in UTF-8. NaN and Infinity are not JSON.

    Lone surrogates are accepted by default. Return False for a value above JSON_DEPTH_MAX.
    """
    if is_too_deep(text):
        return False
    try:
        _decode_any(text)
    except msgspec.ValidationError:
        pass  # "Number out of range", such as 1e999, which is JSON.
    except msgspec.DecodeError:
        if not lone_surrogates or b"\\u" not in text:
            return False
    except UnicodeDecodeError:
        return False
    else:
        return True
    return _is_utf8(text) and _has_form(shield(text) if lone_surrogates else text)


def is_json_of_any_bytes(text: bytes) -> bool:
    """Return True if the text is one JSON value, whatever bytes its strings have."""
    return _has_form(shield(text))


def is_too_deep(text: bytes) -> bool:
    """Return True if the JSON text has more than JSON_DEPTH_MAX levels. Its form is not checked."""
    if len(text) <= JSON_DEPTH_MAX or text.count(b"[") + text.count(b"{") <= JSON_DEPTH_MAX:
        return False
    # Remove the strings, because a bracket in a string is no level: first escaped backslashes and
    # quotes, then strings without a bracket, then every second part between quotes.
    text = text.replace(b"\\\\", b"").replace(b'\\"', b"")
    text = text.translate(None, _NO_BRACKETS).replace(b'""', b"")
    steps = b"".join(text.split(b'"')[::2]).translate(_STEPS)
    return max(accumulate(memoryview(steps).cast("b")), default=0) > JSON_DEPTH_MAX


def check_depth(text: bytes, *, field: str) -> None:
    """Raise JsonTooDeepError if the JSON text of a field has more than JSON_DEPTH_MAX levels."""
    if is_too_deep(text):
        raise too_deep(field)


def too_deep(field: str) -> JsonTooDeepError:
    """Return the error for a field whose JSON a decoder or `is_too_deep` found too deep."""
    return JsonTooDeepError(
        f"The JSON of {field} is nested too deeply; the limit is {JSON_DEPTH_MAX} levels.",
        field=field,
    )


def load_json(text: bytes) -> Any:
    """Return the value of a JSON text as JavaScript would.

    A lone surrogate stays a lone surrogate in the `str`; each invalid byte becomes U+FFFD. Raises
    msgspec.DecodeError if the text is not JSON.
    """
    try:
        return _decode_any(text)
    except (msgspec.DecodeError, UnicodeDecodeError):
        if not is_json_of_any_bytes(text):
            raise
    return json.loads(text.decode(errors="replace"), parse_int=_number, parse_constant=_refuse)


def lone_surrogate_path(text: bytes, *, root: str = "") -> str | None:
    """Return the path of a string or name with a lone surrogate, or None.

    For a name with a lone surrogate, return the path of the object that contains the name. Paths
    start with `root`. Return None for a text that is not JSON.
    """
    if not is_json(text):
        return None
    nodes: list[tuple[str, Any]] = [(root, load_json(text))]
    while nodes:
        path, value = nodes.pop()
        if isinstance(value, str) and _has_lone_surrogate(value):
            return path
        if isinstance(value, list):
            nodes.extend((f"{path}[{number}]", each) for number, each in enumerate(value))
        elif isinstance(value, dict):
            if any(map(_has_lone_surrogate, value)):
                return path
            prefix = f"{path}." if path else ""
            nodes.extend((f"{prefix}{name}", each) for name, each in value.items())
    return None


def lone_surrogate_problem(path: str) -> str:
    """Return the error message for a lone surrogate at this path."""
    return (
        f"{path or 'The body'} has a lone surrogate, half of a character such as an emoji, which"
        " transactions cannot store."
    )


def shield(text: bytes, mark: bytes = _MARK) -> bytes:
    """Return the text with each lone surrogate's backslash replaced by a mark, for a parser.

    Decode the result into types that hold arbitrary JSON as `msgspec.Raw`, and pass these values to
    `unshield`.
    A lone surrogate in a field of type `str` raises UnicodeDecodeError then. The mark must not
    occur in the text: the default is right for valid UTF-8, `free_mark` finds one for any text.
    """
    return _escapes.sub(
        lambda found: mark + found.group(1) if found.group(1) else found.group(), text
    )


def unshield(raw: bytes, mark: bytes = _MARK) -> bytes:
    """Return the text from which `shield` made `raw`."""
    return raw.replace(mark, b"\\")


def free_mark(text: bytes) -> bytes:
    """Return a mark for `shield` that does not occur in the text."""
    mark = _MARK
    number = 0
    while mark in text:
        number += 1
        mark = b"\xff%d\xff" % number
    return mark


def _has_form(text: bytes) -> bool:
    try:
        _decode_raw(text)
    except (msgspec.DecodeError, RecursionError):
        return False
    return True


def _has_lone_surrogate(text: str) -> bool:
    return any("\ud800" <= each <= "\udfff" for each in text)


def _is_utf8(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


def _number(digits: str) -> int | float:
    try:
        return int(digits)
    except ValueError:
        # Python converts no more than 4,300 digits.
        return float(digits)


def _refuse(constant: str) -> NoReturn:
    raise msgspec.DecodeError(f"{constant} is not JSON.")
