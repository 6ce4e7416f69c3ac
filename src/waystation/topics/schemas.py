"""JSON Schemas of topics: a payload that does not match its topic's schema is refused.

A schema is checked when a topic gets it, and compiled once for each version of the topic. Nothing
is ever fetched: references lead into the schema itself. Work is bounded, since a few lines of
schema can ask for more than a machine can do: a schema counts with all its references followed, so
none may lead back to where it is part of, and patterns are matched in linear time, so they have no
look-around and no back-references.

Drafts 6, 7, 2019-09 and 2020-12; `format` is checked in all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple
from urllib.parse import unquote

import jsonschema_rs
import msgspec

from waystation.envelope import Envelope
from waystation.errors import SchemaInvalidError, SchemaMismatchError
from waystation.topics.topic import Topic

SCHEMA_BYTES_MAX = 65_536
#: Objects and arrays inside one another, references followed.
SCHEMA_DEPTH_MAX = 100
#: Values in it, references followed.
SCHEMA_VALUES_MAX = 20_000
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
#: These look at what stands beside them again, and again for each of their kind above: measured,
#: three times. Not so at what is only about parts of a value, or about nothing until referred to.
_REPEATING_WORDS = ("unevaluatedItems", "unevaluatedProperties")
_REPEATS = 3
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
        *_REPEATING_WORDS,
    }
)
_COMPILED_MAX = 1000
_TEXT_MAX = 200

_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode


def check_schema(schema: dict[str, object]) -> None:
    """Refuses what is no schema, or one that cannot be used here; nothing else is done."""
    _compile(schema)


class _Compiled(NamedTuple):
    #: Version and birth of the topic: a name may be used again.
    version: tuple[int, int]
    validator: jsonschema_rs.Validator


class Schemas:
    """The compiled schemas of all topics, in one process."""

    def __init__(self) -> None:
        self._compiled: dict[tuple[str, str], _Compiled] = {}

    def check(self, topic: Topic, envelopes: Sequence[Envelope]) -> None:
        """Raises SchemaMismatchError for the first payload that does not match."""
        if topic.options.json_schema is None:
            return
        validator = self._validator(topic, topic.options.json_schema)
        for position, envelope in enumerate(envelopes):
            found = _mismatch(validator, envelope.data)
            if found is not None:
                path, reason = found
                where = f" at {path}" if path else ""
                batch = len(envelopes) > 1
                which = f"Message {position}" if batch else "The payload"
                raise SchemaMismatchError(
                    f"{which} does not match the topic's schema{where}: {reason}.",
                    field=f"messages[{position}].data" if batch else "data",
                    path=path,
                    position=position,
                )

    def _validator(self, topic: Topic, schema: dict[str, object]) -> jsonschema_rs.Validator:
        key = (topic.project, topic.name)
        found = self._compiled.pop(key, None)
        version = (topic.version, topic.created_ms)
        if found is None or found.version != version:
            found = _Compiled(version, _compile(schema))
            if len(self._compiled) >= _COMPILED_MAX:
                self._compiled.pop(next(iter(self._compiled)))
        # At the end again: whoever was not used for longest is forgotten first.
        self._compiled[key] = found
        return found.validator


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


def _compile(schema: dict[str, object]) -> jsonschema_rs.Validator:
    try:
        size = len(_encode(schema))
    except (RecursionError, TypeError, ValueError) as error:
        raise _invalid("It is not JSON.") from error
    if size > SCHEMA_BYTES_MAX:
        raise _invalid(f"It has {size} bytes, and {SCHEMA_BYTES_MAX} are allowed.")
    draft = schema.get("$schema", "https://json-schema.org/draft/2020-12/schema")
    if not isinstance(draft, str) or draft.removesuffix("#") not in _DRAFTS:
        raise _invalid("Its $schema is not one of drafts 6, 7, 2019-09 and 2020-12.")
    _Measure(schema).take()
    try:
        return jsonschema_rs.validator_for(
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
            repeats = _REPEATS if any(word in value for word in _REPEATING_WORDS) else 1
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
        return [self._target(reference)] if isinstance(reference, str) else []

    def _target(self, reference: str) -> object:
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
