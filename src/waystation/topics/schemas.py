"""JSON Schemas of topics: validate each payload before it is produced.

`check_schema` checks a schema when a topic is created or changed. `SchemaValidator` compiles a
schema once per version of the topic and validates payloads. It supports drafts 6, 7, 2019-09 and
2020-12 and asserts `format` in all of them.

A few lines of schema can demand unlimited work, so these limits apply:

- References must point into the schema itself. The validator loads no other documents.
- The size of a schema is counted as if each reference were replaced by its target. Recursive
  references are therefore rejected.
- Regular expressions must match in linear time. Look-around and back-references are rejected.
- `schema_cost.py` estimates the work for a payload before the validation. A payload above the limit
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
from waystation.runtime.json_text import check_depth
from waystation.topics.model import TopicDefinition
from waystation.topics.schema_cost import REPEATING_WORDS, REPEATS, Cost, SchemaCosts

SCHEMA_BYTES_MAX = 65_536
#: Limit of the nesting of a schema, counted with each reference replaced by its target.
SCHEMA_DEPTH_MAX = 100
#: Limit of the JSON values in a schema, counted in the same way.
SCHEMA_VALUES_MAX = 20_000
#: Limit of the steps for one payload. They take about half a second and block the event loop.
WORK_MAX = 30_000_000
#: Number of steps after which the validator lets other tasks run.
_TURN = 1_000_000
_DRAFTS = frozenset(
    {
        "http://json-schema.org/draft-06/schema",
        "http://json-schema.org/draft-07/schema",
        "https://json-schema.org/draft/2019-09/schema",
        "https://json-schema.org/draft/2020-12/schema",
    }
)
#: Rejected keywords: their target is known only during a validation, so they cannot be measured.
_REFUSED_WORDS = ("$dynamicRef", "$recursiveRef")
#: Keywords that the validator does not repeat for `unevaluated…` keywords. They validate only items
#: or properties of the value, or hold definitions for references.
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
#: Errors that the JSON decoder raises for invalid or too deeply nested input.
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
    #: Version and creation time of the topic, because a new topic can have the name of a purged
    #: one.
    version: tuple[int, int]
    compiled: _Compiled


class SchemaValidator:
    """Validates payloads against the schemas of their topics.

    The only state is a cache of compiled schemas.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], _Known] = {}

    async def check(
        self, topic: TopicDefinition, envelopes: Sequence[Envelope], *, batch: bool
    ) -> None:
        """Validate payloads in order. Do nothing if the topic has no schema.

        Raise SchemaMismatchError if a payload does not match, TooLargeError if its validation could
        take too long, JsonTooDeepError if the payload is nested too deeply.
        """
        if topic.options.json_schema is None:
            return
        compiled = self._compiled(topic, topic.options.json_schema)
        done = 0
        for position, envelope in enumerate(envelopes):
            which, field = "The payload", "data"
            if batch:
                which, field = f"Message {position}", f"messages[{position}].data"
            check_depth(envelope.data, field=field)
            done += _require_cheap(compiled.cost, envelope.data, which, field)
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
        # Insert the schema at the end, so that the first key is the least recently used one.
        self._known[key] = found
        return found.compiled


def _require_cheap(cost: Cost, data: bytes, which: str, field: str) -> int:
    """Return the number of steps to validate a payload. Raise TooLargeError above the limit."""
    try:
        steps = cost.steps(data, _decode, WORK_MAX)
    except _UNREADABLE:
        return 0  # `_mismatch` decodes the payload again and reports the error.
    if steps > WORK_MAX:
        raise TooLargeError(
            f"{which} is too large for the topic's schema: its validation can take {steps:,} steps;"
            f" the limit is {WORK_MAX:,}.",
            field=field,
            hint="Send smaller payloads, or give the topic a schema with fewer alternatives.",
        )
    return steps


def _mismatch(validator: jsonschema_rs.Validator, data: bytes) -> tuple[str, str] | None:
    """Return the path and the reason of the first mismatch. Return None if the payload matches."""
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
            # Mask values, because payloads can be confidential and errors are logged.
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
            f"The validation of one value can take {cost.value:,} steps; the limit is {WORK_MAX:,}."
        )
    return _Compiled(validator, cost)


class _Measure:
    """Measures size and depth of a schema, with each reference replaced by its target."""

    def __init__(self, schema: dict[str, object]) -> None:
        self._schema = schema
        #: Python `id` of a measured part of the schema -> its number of values and of levels.
        self._known: dict[int, tuple[int, int]] = {}
        #: Python `id` of the part that is being measured, and of all parts around it. A part is
        #: recursive if it contains a part of this set.
        self._open: set[int] = set()

    def take(self) -> None:
        """Raise SchemaInvalidError if the schema is too large, too deep or recursive."""
        self._of(self._schema, 0)

    def _of(self, value: object, above: int) -> tuple[int, int]:
        """Return the number of values in a part of the schema, and the number of levels inside it.

        `above` is the number of levels around it.
        """
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
                f"It has more than {SCHEMA_VALUES_MAX:,} values, counted with each reference"
                " replaced by its target."
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
            # Reject an inner `$id`, because it would change the targets of references.
            raise _invalid("Only the root of the schema can have an `$id`.")
        reference = value.get("$ref")
        return [self.target(reference)] if isinstance(reference, str) else []

    def target(self, reference: str) -> object:
        """Return the part of the schema that a `$ref` points to."""
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
        f"It is more than {SCHEMA_DEPTH_MAX} levels deep, counted with each reference replaced by"
        " its target."
    )


def _invalid(reason: str) -> SchemaInvalidError:
    return SchemaInvalidError(
        f"The JSON Schema cannot be used. {reason}", field="options.json_schema"
    )
