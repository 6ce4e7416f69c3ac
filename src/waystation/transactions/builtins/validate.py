"""`util/validate`: the input passes on, if it has what is asked for; else the transaction fails.

There is one sentence for each field at fault, so that whoever sent it can mend all of them at once.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from waystation.transactions.builtins.field_paths import FieldPath, field_in, object_in
from waystation.transactions.context import Context
from waystation.transactions.outcomes import Fail, Outcome, Success, settle
from waystation.transactions.steps import BuiltInStep

Type = Literal["string", "number", "integer", "boolean", "object", "array", "null"]
_decode = msgspec.json.Decoder().decode


class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Fields that must be there, and what fields must be if they are."""

    required: tuple[FieldPath, ...] = ()
    types: dict[FieldPath, Type | tuple[Type, ...]] = {}


async def run(_: Context, given: bytes, options: Options) -> Outcome:
    """Fails unless the input has the fields that are asked for."""
    if object_in(given) is None:
        return settle(Fail("The input is no object."), given)
    problems = {path: "is missing" for path in options.required if field_in(given, path) is None}
    for path, asked in options.types.items():
        found = field_in(given, path)
        types = (asked,) if isinstance(asked, str) else asked
        if found is not None and not _types_of(_decode(found)) & set(types):
            problems[path] = f"is not of type {' or '.join(types)}"
    if not problems:
        return Success(given)
    sentences = [f"Field {path} {problem}." for path, problem in problems.items()]
    told = {
        "error": " ".join(sentences),
        "errors": [
            {"field": path, "detail": sentence}
            for path, sentence in zip(problems, sentences, strict=True)
        ],
    }
    return settle(Fail(" ".join(sentences), told), given)


def _types_of(value: Any) -> set[str]:
    match value:
        case None:
            return {"null"}
        case bool():
            return {"boolean"}
        case int():
            return {"integer", "number"}
        case float():
            # As in JSON Schema: 1.0 is an integer, too.
            return {"number", "integer"} if value.is_integer() else {"number"}
        case str():
            return {"string"}
        case list():
            return {"array"}
        case _:
            return {"object"}


STEP = BuiltInStep("util/validate", Options, run, pure=True)
