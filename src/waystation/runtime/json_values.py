"""JSON values: encoding of Python values, and comparison of JSON texts by their content."""

from __future__ import annotations

import dataclasses
import enum
import json
import math
import re
from collections.abc import Iterable
from decimal import Decimal, InvalidOperation
from typing import Any

import msgspec

from waystation.errors import NotFiniteError
from waystation.runtime.json_text import too_deep

#: Limit of the characters of a path in an error.
_PATH_LENGTH_MAX = 200
#: Names that msgspec writes for NaN, Infinity and -Infinity as keys of a dictionary.
_has_number_name = re.compile(rb'"(?:nan|-?inf)":').search
_encode = msgspec.json.Encoder().encode

#: A value, the node of the object or array that contains it, and its key or index there.
_Node = tuple[object, Any, str | int]


def encode_json(value: object, *, field: str = "") -> bytes:
    """Encode a value as JSON; raise NotFiniteError for NaN and Infinity, with their path.

    Raise JsonTooDeepError if the encoder cannot write the value because of its depth.

    msgspec writes null for both as values, and "nan", "inf" and "-inf" as names of an object. Only
    a text that has one of these is looked through, so most others cost nothing. `field` is what the
    path begins with. `msgspec.Raw` is taken as JSON already.
    """
    try:
        text = _encode(value)
    except RecursionError as error:
        raise too_deep(field or "value") from error
    if b"null" in text or _has_number_name(text):
        require_finite(value, field=field)
    return text


def require_finite(value: object, *, field: str = "") -> None:
    """Raise NotFiniteError if a value that can be encoded has NaN or Infinity somewhere."""
    nodes: list[_Node] = [(value, None, field)]
    while nodes:
        node = nodes.pop()
        found = node[0]
        if isinstance(found, float) and not math.isfinite(found):
            path = _path(node)
            raise NotFiniteError(
                f"{path or 'The value'} is {_word(found)}, which JSON cannot express.",
                field=path,
                hint="Use a finite number, null or a text.",
            )
        if isinstance(found, dict):
            # Also check names that are numbers. The path of an error is then the path of the
            # dictionary, followed by the name.
            nodes.extend((name, node, str(name)) for name in found if isinstance(name, float))
        nodes.extend((each, node, name) for name, each in _parts(found))


def _parts(value: object) -> Iterable[tuple[str | int, object]]:
    """Return the children of a value, each with its key or index in the JSON form."""
    if isinstance(value, dict):
        return ((str(name), each) for name, each in value.items())
    if isinstance(value, list | tuple | set | frozenset):
        return enumerate(value)
    if isinstance(value, msgspec.Struct):
        kept = (getattr(value, name) for name in value.__struct_fields__)
        if value.__struct_config__.array_like:
            return enumerate(kept)
        return zip(value.__struct_encode_fields__, kept, strict=True)
    if isinstance(value, enum.Enum):
        return (("", value.value),)
    if dataclasses.is_dataclass(value):
        return ((each.name, getattr(value, each.name)) for each in dataclasses.fields(value))
    # Read the fields of attrs classes without importing attrs, which need not be installed.
    attributes = getattr(type(value), "__attrs_attrs__", ())
    return ((each.name, getattr(value, each.name)) for each in attributes)


def _path(node: _Node) -> str:
    parts: list[str] = []
    at: _Node | None = node
    while at is not None:
        _, above, name = at
        if isinstance(name, int):
            parts.append(f"[{name}]")
        elif name:
            parts.append(name if above is None else f".{name}")
        at = above
    return "".join(reversed(parts)).removeprefix(".")[:_PATH_LENGTH_MAX]


def _word(number: float) -> str:
    if math.isnan(number):
        return "NaN"
    return "Infinity" if number > 0 else "-Infinity"


def same_json(first: bytes, second: bytes) -> bool:
    """Return whether two JSON texts have the same content.

    Blanks, the order of names and the notation of numbers and strings make no difference. Numbers
    are compared exactly, however many digits they have. A text that cannot be parsed is the same
    as its own bytes alone.
    """
    if first == second:
        return True
    try:
        return _same(_parse(first), _parse(second))
    except (ValueError, RecursionError):
        return False


def _parse(text: bytes) -> Any:
    return json.loads(text, parse_int=_number, parse_float=_number)


def _number(text: str) -> Decimal | str:
    try:
        return Decimal(text)
    except InvalidOperation:
        # The exponent is too large for a Decimal, so compare the notation. The prefix distinguishes
        # it from a string.
        return f"\0{text}"


def _same(first: Any, second: Any) -> bool:
    pairs = [(first, second)]
    while pairs:
        a, b = pairs.pop()
        # Compare the types first, because True == 1 in Python.
        if type(a) is not type(b):
            return False
        if isinstance(a, dict):
            if a.keys() != b.keys():
                return False
            pairs.extend((a[name], b[name]) for name in a)
        elif isinstance(a, list):
            if len(a) != len(b):
                return False
            pairs.extend(zip(a, b, strict=True))
        elif a != b:
            return False
    return True
