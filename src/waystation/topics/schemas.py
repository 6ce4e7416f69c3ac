"""JSON Schemas of topics: a payload that does not match its topic's schema is refused.

A schema is checked when a topic gets it, and compiled once for each version of the topic. Nothing
is ever fetched: references lead into the schema itself. Work is bounded, since a few lines of
schema can ask for more than a machine can do: a schema counts with all its references followed, so
none may lead back to where it is part of, and patterns are matched in linear time, so they have no
look-around and no back-references. What schema and payload ask for together is estimated first
(`schema_work.py`): over a bound, the payload is refused, and between the messages of a batch
others have their turn.

Drafts 6, 7, 2019-09 and 2020-12; `format` is checked in all of them.
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
#: Objects and arrays inside one another, references followed.
SCHEMA_DEPTH_MAX = 100
#: Values in it, references followed.
SCHEMA_VALUES_MAX = 20_000
#: Steps to check one payload: half a second or so of a process that does nothing else meanwhile.
WORK_MAX = 30_000_000
#: Steps after which others have their turn.
_TURN = 1_000_000
_DRAFTS = frozenset(
    {
        "http://json-schema.org/draft-06/schema",
        "http://json-schema.org/draft-07/schema",
        "https://json-schema.org/draft/2019-09/schema",
        "https://json-schema.org/draft/2020-12/schema",
    }
)
#: What else could lead away from where a plain reference leads.
_REFUSED_WORDS = ("$dynamicRef", "$recursiveRef")
#: Not looked at again by repeating words: what is only about parts of a value, or about nothing
#: until referred to.
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
#: What the decoder raises.
_UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError)
_TEXT_MAX = 200

_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode


def check_schema(schema: dict[str, object]) -> None:
    """Refuses what is no schema, or one that cannot be used here; nothing else is done."""
    _compile(schema)


class _Compiled(NamedTuple):
    validator: jsonschema_rs.Validator
    cost: Cost


class _Known(NamedTuple):
    #: Version and birth of the topic: a name may be used again.
    version: tuple[int, int]
    compiled: _Compiled


class SchemaValidator:
    """The compiled schemas of all topics, in one process."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], _Known] = {}

    async def check(
        self, topic: TopicDefinition, envelopes: Sequence[Envelope], *, batch: bool
    ) -> None:
        """Raises SchemaMismatchError for the first payload that does not match.

        TooLargeError for one that would take too long to check.
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
        # At the end again: whoever was not used for longest is forgotten first.
        self._known[key] = found
        return found.compiled


def _require_room(cost: Cost, data: bytes, which: str, field: str) -> int:
    """Steps that a payload can take; raises where they are too many."""
    try:
        steps = cost.steps(data, _decode, WORK_MAX)
    except _UNREADABLE:
        return 0  # Told by the check itself.
    if steps > WORK_MAX:
        raise TooLargeError(
            f"{which} is too large for the topic's schema: to check it can take {steps:,} steps,"
            f" and {WORK_MAX:,} are allowed.",
            field=field,
            hint="Send smaller payloads, or give the topic a schema with fewer alternatives.",
        )
    return steps


def _mismatch(validator: jsonschema_rs.Validator, data: bytes) -> tuple[str, str] | None:
    """Path and reason of the first thing that is wrong with a payload; None: it matches."""
    try:
        value = _decode(data)
        if validator.is_valid(value):
            return None
        validator.validate(value)
    except jsonschema_rs.ValidationError as error:
        return _pointer(error.instance_path)[:_TEXT_MAX], error.message[:_TEXT_MAX]
    except msgspec.ValidationError:
        return "", "it has a number that is too large to be checked"
    except (msgspec.DecodeError, UnicodeDecodeError):
        return "", "it is not JSON"
    except (RecursionError, ValueError):
        return "", "it is nested too deep to be checked"
    return "", "it does not match"


def _pointer(path: Sequence[str | int]) -> str:
    return "".join(f"/{str(step).replace('~', '~0').replace('/', '~1')}" for step in path)


def _compile(schema: dict[str, object]) -> _Compiled:
    try:
        size = len(_encode(schema))
    except (RecursionError, TypeError, ValueError) as error:
        raise _invalid("It is not JSON.") from error
    if size > SCHEMA_BYTES_MAX:
        raise _invalid(f"It has {size} bytes, and {SCHEMA_BYTES_MAX} are allowed.")
    draft = schema.get("$schema", "https://json-schema.org/draft/2020-12/schema")
    if not isinstance(draft, str) or draft.removesuffix("#") not in _DRAFTS:
        raise _invalid("Its $schema is not one of drafts 6, 7, 2019-09 and 2020-12.")
    measure = _Measure(schema)
    measure.take()
    try:
        validator = jsonschema_rs.validator_for(
            schema,
            validate_formats=True,
            offline=True,
            # Payloads are nobody's business: errors and logs must not quote them.
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
        raise _invalid("It asks for more work than any payload may take.")
    return _Compiled(validator, cost)


class _Measure:
    """How large a schema is with all references followed."""

    def __init__(self, schema: dict[str, object]) -> None:
        self._schema = schema
        #: Values in, and depth of, what was measured already.
        self._known: dict[int, tuple[int, int]] = {}
        #: What is being measured: whoever is met again in there is part of itself.
        self._open: set[int] = set()

    def take(self) -> None:
        """Raises SchemaInvalidError for a schema that is too large, too deep or without end."""
        self._of(self._schema, 0)

    def _of(self, value: object, above: int) -> tuple[int, int]:
        """Values in, and depth of, an object or array."""
        if not isinstance(value, dict | list):
            return 1, 0
        if id(value) in self._open:
            raise _invalid("A reference leads back to what it is part of.")
        known = self._known.get(id(value))
        if known is None:
            if above >= SCHEMA_DEPTH_MAX:
                raise _too_deep()
            self._open.add(id(value))
            known = self._inside(value, above)
            self._open.discard(id(value))
            self._known[id(value)] = known
        if known[0] > SCHEMA_VALUES_MAX:
            raise _invalid(f"It has more than {SCHEMA_VALUES_MAX} values, references followed.")
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
                raise _invalid(f"{word} is not supported.")
        if isinstance(value.get("$id"), str) and value is not self._schema:
            # It would change where references lead.
            raise _invalid("Only the whole schema may have an $id.")
        reference = value.get("$ref")
        return [self.target(reference)] if isinstance(reference, str) else []

    def target(self, reference: str) -> object:
        """What a reference leads to."""
        if reference != "#" and not reference.startswith("#/"):
            raise _invalid(
                f"The reference {reference[:80]!r} does not lead into the schema: "
                "such references begin with #/."
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
                raise _invalid(f"The reference {reference[:80]!r} leads nowhere.") from error
        return found


def _too_deep() -> SchemaInvalidError:
    return _invalid(f"It is more than {SCHEMA_DEPTH_MAX} levels deep, references followed.")


def _invalid(reason: str) -> SchemaInvalidError:
    return SchemaInvalidError(
        f"The JSON Schema cannot be used. {reason}", field="options.json_schema"
    )
