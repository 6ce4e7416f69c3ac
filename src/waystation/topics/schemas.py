"""JSON Schemas of topics: validate each payload before it is produced.

`check_schema` checks a schema when a topic is created or changed. `SchemaValidator` compiles a
schema once per version of the topic and validates payloads. Drafts 6, 7, 2019-09 and 2020-12 are
supported; `format` is asserted in all of them.

A few lines of schema can demand unlimited work, so these limits apply:

- References must point into the schema itself. The validator fetches nothing.
- The size of a schema counts all references as if their targets were copied in. A recursive
  reference is therefore rejected.
- Patterns are matched in linear time, so look-around and back-references are rejected.
- The work for a payload is estimated before it starts (`schema_cost.py`). A payload above the limit
  is rejected.

Between the messages of a large batch, the validator lets other tasks of the event loop run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NamedTuple
from urllib.parse import unquote

import jsonschema_rs
import msgspec

from waystation.errors import SchemaInvalidError, SchemaMismatchError, TooLargeError
from waystation.messages.envelope import Envelope
from waystation.topics.model import TopicDefinition
from waystation.topics.schema_cost import REPEATING_WORDS, REPEATS, Cost, SchemaCosts

SCHEMA_BYTES_MAX = 65_536
#: Limit of nested objects and arrays, with references replaced by their targets.
SCHEMA_DEPTH_MAX = 100
#: Limit of values, with references replaced by their targets.
SCHEMA_VALUES_MAX = 20_000
#: Limit of steps for one payload: about half a second, in which the process does nothing else.
WORK_MAX = 30_000_000
#: Number of steps after which other tasks run.
_TURN = 1_000_000
_DRAFTS = frozenset(
    {
        "http://json-schema.org/draft-06/schema",
        "http://json-schema.org/draft-07/schema",
        "https://json-schema.org/draft/2019-09/schema",
        "https://json-schema.org/draft/2020-12/schema",
    }
)
#: Keywords whose target depends on more than the reference itself.
_REFUSED_WORDS = ("$dynamicRef", "$recursiveRef")
#: Keywords that `unevaluated…` keywords do not evaluate again, because they concern only parts of
#: the value, or nothing until a reference points to them.
_NOT_REPEATED = frozenset(
    {
        "$defs",
        "additionalItems",
        "additionalProperties",
        "definitions",
        "items",
        "patternProperties",
        "prefixItems",
        "properties",
        "propertyNames",
        *REPEATING_WORDS,
    }
)
_COMPILED_MAX = 1000
#: Errors of the JSON decoder for input that it cannot decode.
_UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError)
_TEXT_MAX = 200

_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode


def check_schema(schema: dict[str, object]) -> None:
    """Raise SchemaInvalidError if the schema is invalid or exceeds a limit."""
    _compile(schema)


class _Compiled(NamedTuple):
    validator: jsonschema_rs.Validator
    cost: Cost


class _Known(NamedTuple):
    #: Version of the topic and time of its creation, because a name can be used again.
    version: tuple[int, int]
    compiled: _Compiled


class SchemaValidator:
    """Validates payloads. The state is a cache of compiled schemas."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], _Known] = {}

    async def check(
        self, topic: TopicDefinition, envelopes: Sequence[Envelope], *, batch: bool
    ) -> None:
        """Validate payloads if the topic has a schema.

        Raise SchemaMismatchError for the first payload that does not match, or TooLargeError for
        the first one whose validation could take too long.
        """
        if topic.options.json_schema is None:
            return
        compiled = self._compiled(topic, topic.options.json_schema)
        done = 0
        for position, envelope in enumerate(envelopes):
            which, field = "The payload", "data"
            if batch:
                which, field = f"Message {position}", f"messages[{position}].data"
            done += _require_room(compiled.cost, envelope.data, which, field)
            if done > _TURN:
                done = 0
                await asyncio.sleep(0)
            if (found := _mismatch(compiled.validator, envelope.data)) is not None:
                path, reason = found
                where = f" at {path}" if path else ""
                raise SchemaMismatchError(
                    f"{which} does not match the topic's schema{where}: {reason}.",
                    field=field,
                    path=path,
                    position=position,
                )

    def _compiled(self, topic: TopicDefinition, schema: dict[str, object]) -> _Compiled:
        key = (topic.project, topic.name)
        found = self._known.pop(key, None)
        version = (topic.version, topic.created_ms)
        if found is None or found.version != version:
            found = _Known(version, _compile(schema))
            if len(self._known) >= _COMPILED_MAX:
                self._known.pop(next(iter(self._known)))
        # Insert at the end, so that the first key is the least recently used one.
        self._known[key] = found
        return found.compiled


def _require_room(cost: Cost, data: bytes, which: str, field: str) -> int:
    """Return the number of steps for a payload. Raise TooLargeError if it is above the limit."""
    try:
        steps = cost.steps(data, _decode, WORK_MAX)
    except _UNREADABLE:
        return 0  # The validation reports the reason.
    if steps > WORK_MAX:
        raise TooLargeError(
            f"{which} is too large for the topic's schema: its validation can take {steps:,} steps;"
            f" the limit is {WORK_MAX:,}.",
            field=field,
            hint="Send smaller payloads, or give the topic a schema with fewer alternatives.",
        )
    return steps


def _mismatch(validator: jsonschema_rs.Validator, data: bytes) -> tuple[str, str] | None:
    """Return path and reason of the first mismatch of a payload; None if it matches."""
    try:
        value = _decode(data)
        if validator.is_valid(value):
            return None
        validator.validate(value)
    except jsonschema_rs.ValidationError as error:
        return _pointer(error.instance_path)[:_TEXT_MAX], error.message[:_TEXT_MAX]
    except msgspec.ValidationError:
        return "", "it has a number that is too large to validate"
    except (msgspec.DecodeError, UnicodeDecodeError):
        return "", "it is not valid JSON"
    except (RecursionError, ValueError):
        return "", "it is nested too deeply to validate"
    return "", "it does not match"


def _pointer(path: Sequence[str | int]) -> str:
    return "".join(f"/{str(step).replace('~', '~0').replace('/', '~1')}" for step in path)


def _compile(schema: dict[str, object]) -> _Compiled:
    try:
        size = len(_encode(schema))
    except (RecursionError, TypeError, ValueError) as error:
        raise _invalid("It is not valid JSON.") from error
    if size > SCHEMA_BYTES_MAX:
        raise _invalid(f"It has {size:,} bytes; the limit is {SCHEMA_BYTES_MAX:,}.")
    draft = schema.get("$schema", "https://json-schema.org/draft/2020-12/schema")
    if not isinstance(draft, str) or draft.removesuffix("#") not in _DRAFTS:
        raise _invalid("Its `$schema` must be draft 6, 7, 2019-09 or 2020-12.")
    measure = _Measure(schema)
    measure.take()
    try:
        validator = jsonschema_rs.validator_for(
            schema,
            validate_formats=True,
            offline=True,
            # Errors and logs must not quote payloads, because these can be confidential.
            mask="the value",
            pattern_options=jsonschema_rs.RegexOptions(),
        )
    except (jsonschema_rs.ReferencingError, ValueError) as error:
        reason = error.message if isinstance(error, jsonschema_rs.ValidationError) else str(error)
        path = _pointer(getattr(error, "instance_path", ()))
        where = f"At {path}: " if path else ""
        raise _invalid(f"{where}{reason}."[:_TEXT_MAX]) from error
    cost = SchemaCosts(measure.target).of(schema)
    if cost.value > WORK_MAX:
        raise _invalid(
            f"Even one value can take {cost.value:,} steps to validate; the limit is {WORK_MAX:,}."
        )
    return _Compiled(validator, cost)


class _Measure:
    """Measures a schema with its references replaced by their targets."""

    def __init__(self, schema: dict[str, object]) -> None:
        self._schema = schema
        #: Number of values and depth of measured parts, by `id`.
        self._known: dict[int, tuple[int, int]] = {}
        #: `id` of the parts on the current path. A part found here again contains itself.
        self._open: set[int] = set()

    def take(self) -> None:
        """Raise SchemaInvalidError if the schema is too large, too deep or recursive."""
        self._of(self._schema, 0)

    def _of(self, value: object, above: int) -> tuple[int, int]:
        """Return the number of values in a part of the schema, and its depth."""
        if not isinstance(value, dict | list):
            return 1, 0
        if id(value) in self._open:
            raise _invalid("A reference is recursive: its target contains the reference.")
        known = self._known.get(id(value))
        if known is None:
            if above >= SCHEMA_DEPTH_MAX:
                raise _too_deep()
            self._open.add(id(value))
            known = self._inside(value, above)
            self._open.discard(id(value))
            self._known[id(value)] = known
        if known[0] > SCHEMA_VALUES_MAX:
            raise _invalid(
                f"With its references replaced by their targets it has more than"
                f" {SCHEMA_VALUES_MAX:,} values."
            )
        if above + known[1] > SCHEMA_DEPTH_MAX:
            raise _too_deep()
        return known

    def _inside(self, value: dict[str, object] | list[object], above: int) -> tuple[int, int]:
        parts: list[tuple[str, object]]
        if isinstance(value, dict):
            parts = [*value.items(), *(("$ref", target) for target in self._references(value))]
            repeats = REPEATS if any(word in value for word in REPEATING_WORDS) else 1
        else:
            parts, repeats = [("", part) for part in value], 1
        values, depth = 1, 0
        for word, part in parts:
            more, deeper = self._of(part, above + 1)
            values += more if word in _NOT_REPEATED else more * repeats
            depth = max(depth, deeper)
        return values, depth + 1

    def _references(self, value: dict[str, object]) -> list[object]:
        for word in _REFUSED_WORDS:
            if isinstance(value.get(word), str):
                raise _invalid(f"The keyword `{word}` is not supported.")
        if isinstance(value.get("$id"), str) and value is not self._schema:
            # An inner `$id` would change the target of references.
            raise _invalid("Only the root of the schema can have an `$id`.")
        reference = value.get("$ref")
        return [self.target(reference)] if isinstance(reference, str) else []

    def target(self, reference: str) -> object:
        """Return the part of the schema to which a reference points."""
        if reference != "#" and not reference.startswith("#/"):
            raise _invalid(
                f"The reference {reference[:80]!r} does not point into the schema."
                " A reference must be `#` or begin with `#/`."
            )
        found: object = self._schema
        for step in unquote(reference[1:]).split("/")[1:]:
            name = step.replace("~1", "/").replace("~0", "~")
            try:
                match found:
                    case dict():
                        found = found[name]
                    case list():
                        found = found[int(name)]
                    case _:
                        raise KeyError(name)
            except (KeyError, IndexError, ValueError) as error:
                raise _invalid(f"The reference {reference[:80]!r} has no target.") from error
        return found


def _too_deep() -> SchemaInvalidError:
    return _invalid(
        "With its references replaced by their targets it is more than"
        f" {SCHEMA_DEPTH_MAX} levels deep."
    )


def _invalid(reason: str) -> SchemaInvalidError:
    return SchemaInvalidError(
        f"The JSON Schema cannot be used. {reason}", field="options.json_schema"
    )
