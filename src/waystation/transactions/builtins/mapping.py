"""`util/map`: makes another object of the input: fields from elsewhere in it, and fixed values.

Values are taken over byte for byte. A field that the input does not have is left out.
"""

from __future__ import annotations

from typing import Any

import msgspec

from waystation.transactions.builtins.field_paths import (
    FieldPath,
    Tree,
    field_in,
    object_in,
    plant,
)
from waystation.transactions.context import Context
from waystation.transactions.outcomes import Fail, Outcome, Success, settle
from waystation.transactions.steps import BuiltInStep

_encode = msgspec.json.Encoder().encode


class Value(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A value that the definition says."""

    value: Any


class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where each field of the output comes from, and whether the others are kept."""

    fields: dict[FieldPath, FieldPath | Value]
    keep: bool = False


async def run(_: Context, given: bytes, options: Options) -> Outcome:
    """Makes another object of the fields of the input."""
    fields = object_in(given)
    if fields is None:
        return settle(Fail("The input of util/map is no object."), given)
    tree: Tree = dict(fields) if options.keep else {}
    for to, source in options.fields.items():
        found = _encode(source.value) if isinstance(source, Value) else field_in(given, source)
        if found is not None:
            plant(tree, to, found)
    return Success(_encode(tree))


STEP = BuiltInStep("util/map", Options, run, pure=True)
