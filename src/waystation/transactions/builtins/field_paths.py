"""Fields of a JSON text by their paths: `order.total`. What is not looked at stays as it was."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

#: Names with dots between them.
FieldPath = Annotated[str, Meta(pattern=r"\A[^.]+(\.[^.]+)*\Z", max_length=500)]
_Fields = dict[str, msgspec.Raw]
_fields = msgspec.json.Decoder(_Fields).decode


def object_in(text: bytes | msgspec.Raw) -> _Fields | None:
    """The fields of an object; None for anything else."""
    try:
        return _fields(text)
    except msgspec.ValidationError:
        return None


def field_in(text: bytes, path: str) -> bytes | None:
    """The field at a path, byte for byte; None where there is none."""
    found: bytes | msgspec.Raw = text
    for name in path.split("."):
        fields = object_in(found)
        if fields is None or name not in fields:
            return None
        found = fields[name]
    return bytes(found)


def text_in(text: bytes, path: str) -> str | None:
    """The field at a path, if it is a text or a whole number."""
    found = field_in(text, path)
    value = None if found is None else msgspec.json.decode(found)
    if isinstance(value, bool) or not isinstance(value, str | int):
        return None
    return str(value)


Tree = dict[str, "Tree | msgspec.Raw"]


def plant(tree: Tree, path: str, value: bytes) -> None:
    """Puts a value at a path; what was there, or in its way, goes."""
    *above, last = path.split(".")
    for name in above:
        below = tree.get(name)
        if not isinstance(below, dict):
            below = dict(object_in(below) or {}) if below is not None else {}
            tree[name] = below
        tree = below
    tree[last] = msgspec.Raw(value)
