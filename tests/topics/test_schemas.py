"""JSON Schemas: mismatches, invalid schemas, and schemas that demand too much work."""

from __future__ import annotations

import asyncio
import contextlib
import time

import msgspec
import pytest

from waystation.errors import (
    JsonTooDeepError,
    SchemaInvalidError,
    SchemaMismatchError,
    TooLargeError,
)
from waystation.messages.envelope import Envelope
from waystation.runtime.json_text import JSON_DEPTH_MAX
from waystation.topics import schemas as schemas_module
from waystation.topics.model import StorageTopicDefinition, TopicDefinition
from waystation.topics.schema_cost import states_of
from waystation.topics.schemas import SchemaValidator, check_schema
from waystation.types.topic import TopicOptions

ORDER: dict[str, object] = {
    "type": "object",
    "required": ["id"],
    "properties": {
        "id": {"type": "string", "maxLength": 10},
        "lines": {"type": "array", "items": {"$ref": "#/$defs/line"}},
        "at": {"format": "date-time"},
    },
    "$defs": {"line": {"properties": {"a/b~c": {"type": "integer", "maximum": 10**30}}}},
}


def topic(
    schema: dict[str, object] | None, *, version: int = 1, created_ms: int = 0, name: str = "orders"
) -> TopicDefinition:
    return TopicDefinition(
        project="default",
        name=name,
        version=version,
        options=TopicOptions(json_schema=schema),
        storage=(StorageTopicDefinition(number=0, partitions=1),),
        created_ms=created_ms,
    )


def messages(*payloads: bytes) -> list[Envelope]:
    return [Envelope(id=f"m{n}", project="default", data=data) for n, data in enumerate(payloads)]


def check(schemas: SchemaValidator, of: TopicDefinition, *payloads: bytes) -> None:
    asyncio.run(schemas.check(of, messages(*payloads), batch=len(payloads) > 1))


def mismatch(schema: dict[str, object], *payloads: bytes) -> SchemaMismatchError:
    with pytest.raises(SchemaMismatchError) as raised:
        check(SchemaValidator(), topic(schema), *payloads)
    return raised.value


def test_schema_validator_without_schema_accepts_every_payload() -> None:
    check(SchemaValidator(), topic(None), b"\xff\x00")


def test_schema_validator_accepts_matching_payload() -> None:
    payload = b' {"id": "a", "lines": [{"a/b~c": 123456789012345678901234567890}]} '
    check(SchemaValidator(), topic(ORDER), payload, b'{"id":""}')


@pytest.mark.parametrize(
    ("payload", "path", "reason"),
    [
        (b"{}", "", '"id" is a required property'),
        (b'{"id":5}', "/id", 'the value is not of type "string"'),
        (b'{"id":"a","lines":[{},{"a/b~c":1.5}]}', "/lines/1/a~1b~0c", "integer"),
        (b'{"id":"a","at":"yesterday"}', "/at", "date-time"),
        (b"[1]", "", "object"),
        (b"", "", "not valid JSON"),
        (b"{", "", "not valid JSON"),
        (b'{"id":NaN}', "", "not valid JSON"),
        (b'{"id":"\xff"}', "", "not valid JSON"),
        (b'{"id":"\\ud800"}', "", "not valid JSON"),
        (b'{"id":"a","x":1e999}', "", "too large to validate"),
        (b'{"id":"a","x":' + b"1" * 5000 + b"}", "", "too large to validate"),
    ],
)
def test_schema_validator_with_mismatch_names_first_failing_path(
    payload: bytes, path: str, reason: str
) -> None:
    error = mismatch(ORDER, payload)
    assert error.code == "topic.schema-mismatch"
    assert (error.path, error.position) == (path, 0)
    assert reason in error.message


def test_schema_validator_at_depth_limit_accepts_payload() -> None:
    payload = b"[" * JSON_DEPTH_MAX + b"]" * JSON_DEPTH_MAX
    check(SchemaValidator(), topic({"type": "array"}), payload)


@pytest.mark.parametrize("depth", [JSON_DEPTH_MAX + 1, 1000, 100_000])
def test_schema_validator_above_depth_limit_raises_json_too_deep(depth: int) -> None:
    payload = b"[" * depth + b"]" * depth
    with pytest.raises(JsonTooDeepError, match=f"the limit is {JSON_DEPTH_MAX} levels"):
        check(SchemaValidator(), topic({"type": "array"}), payload)


def test_schema_validator_with_mismatch_in_batch_names_message() -> None:
    error = mismatch(ORDER, b'{"id":"a"}', b'{"id":"b"}', b'{"id":3}', b"{}")
    assert (error.position, error.field, error.path) == (2, "messages[2].data", "/id")
    assert error.message.startswith("Message 2 ")


async def test_schema_validator_with_batch_of_one_names_message() -> None:
    with pytest.raises(SchemaMismatchError) as raised:
        await SchemaValidator().check(topic(ORDER), messages(b"{}"), batch=True)
    assert (raised.value.position, raised.value.field) == (0, "messages[0].data")


def test_schema_validator_error_is_short_and_omits_payload() -> None:
    error = mismatch(ORDER, b'{"id":"%b"}' % (b"secret" * 100_000))
    assert "secret" not in error.message
    names = b",".join(b'"%d":1' % number for number in range(10_000))
    error = mismatch({"additionalProperties": False}, b"{%b}" % names)
    assert len(error.message) < 400


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"type": "objekt"}, "/type"),
        ({"properties": {"a": {"pattern": "("}}}, "/properties/a/pattern"),
        ({"pattern": "(?!a)b"}, "regex"),
        ({"pattern": "(((a{1,100}){1,100}){1,100}){1,100}"}, "regex"),
        ({"$schema": "http://json-schema.org/draft-04/schema#"}, "draft 6, 7"),
        ({"$schema": "http://127.0.0.1:9/meta"}, "draft 6, 7"),
        ({"$schema": 7}, "draft 6, 7"),
        ({"$ref": "http://127.0.0.1:9/x.json"}, "#/"),
        ({"$ref": "file:///etc/hostname"}, "#/"),
        ({"$id": "http://127.0.0.1:9/a", "$ref": "b.json"}, "#/"),
        ({"$ref": "#line"}, "#/"),
        ({"$ref": "#/$defs/none"}, "has no target"),
        ({"$ref": "#/enum/7", "enum": [1]}, "has no target"),
        ({"$ref": "#/type/0", "type": "object"}, "has no target"),
        ({"$ref": "#"}, "is recursive"),
        ({"properties": {"child": {"$ref": "#"}}}, "is recursive"),
        ({"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}, "is recursive"),
        ({"$dynamicRef": "#a"}, "$dynamicRef"),
        ({"properties": {"a": {"$id": "other", "$ref": "#/type"}}}, "$id"),
        ({"description": "x" * 70_000}, "bytes"),
        ({"default": object()}, "not valid JSON"),
    ],
)
def test_check_schema_with_invalid_schema_names_reason(
    schema: dict[str, object], reason: str
) -> None:
    with pytest.raises(SchemaInvalidError) as raised:
        check_schema(schema)
    assert reason in raised.value.message
    assert raised.value.code == "topic.schema-invalid"


def test_check_schema_with_cycle_or_deep_nesting_is_rejected() -> None:
    endless: dict[str, object] = {}
    endless["not"] = endless
    deep: dict[str, object] = {}
    for _ in range(60):
        deep = {"properties": {"a": deep}}
    chain: dict[str, object] = {
        f"d{n}": {"not": {"$ref": f"#/$defs/d{n + 1}"}} for n in range(1000)
    }
    chain["d1000"] = {}
    # The definition alone is within the depth limit. In place of the reference it exceeds the
    # limit.
    half: dict[str, object] = {}
    for _ in range(40):
        half = {"not": half}
    twice: dict[str, object] = {"$ref": "#/$defs/half"}
    for _ in range(70):
        twice = {"not": twice}
    check_schema({"$defs": {"half": half}, "not": {"$ref": "#/$defs/half"}})
    for schema in (endless, deep, {"$defs": chain}, {"$defs": {"half": half}, "not": twice}):
        with pytest.raises(SchemaInvalidError):
            check_schema(schema)


def doubling() -> dict[str, object]:
    """Return definitions that each apply the next one twice: 2 ** 30 checks in two kilobytes."""
    steps: dict[str, object] = {
        f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(30)
    }
    steps["d30"] = {"type": "object"}
    return {"$defs": steps, "$ref": "#/$defs/d0"}


def unevaluated(levels: int) -> dict[str, object]:
    """Return a schema in which each level evaluates all lower levels again."""
    schema: dict[str, object] = {"properties": {"a": True}}
    for _ in range(levels):
        schema = {"allOf": [schema], "unevaluatedProperties": False}
    return schema


def unevaluated_parts() -> dict[str, object]:
    """Return a schema in which each level evaluates a part of the value again."""
    schema: dict[str, object] = {}
    for _ in range(20):
        schema = {"anyOf": [{"properties": {"a": schema}}], "unevaluatedProperties": False}
    return schema


def unevaluated_references() -> dict[str, object]:
    """Return a schema in which each level evaluates its reference again."""
    steps: dict[str, object] = {
        f"d{n}": {"$ref": f"#/$defs/d{n + 1}", "unevaluatedProperties": False} for n in range(25)
    }
    steps["d25"] = {"properties": {"a": True}}
    return {"$defs": steps, "$ref": "#/$defs/d0"}


@pytest.mark.parametrize(
    "trap", [doubling(), unevaluated(30), unevaluated_parts(), unevaluated_references()]
)
def test_check_schema_with_exponential_work_is_rejected(trap: dict[str, object]) -> None:
    with pytest.raises(SchemaInvalidError, match=r"more than .* values"):
        check_schema(trap)


def test_schema_validator_with_nested_strict_objects_accepts_payload() -> None:
    schema: dict[str, object] = {"type": "string"}
    for _ in range(30):
        schema = {"properties": {"a": schema}, "unevaluatedProperties": False}
    check(SchemaValidator(), topic(schema), b'{"a":{"a":{}}}')
    assert mismatch(schema, b'{"a":{"a":{"b":1}}}').path == "/a/a"


def test_schema_validator_with_largest_schema_takes_little_time() -> None:
    wide: dict[str, object] = {"$defs": {"d": {"enum": [*range(100)]}}}
    wide["allOf"] = [{"$ref": "#/$defs/d"}] * 190
    for each, payload in ((unevaluated(7), b'{"a":1}'), (wide, b"99")):
        schemas = SchemaValidator()
        check(schemas, topic(each), payload)
        begun = time.process_time()
        check(schemas, topic(each), payload)
        assert time.process_time() - begun < 0.05


CONSTANTS = [{"const": number} for number in range(3000)]
#: Valid schemas, each with a payload whose check would take too long.
TRAPS: dict[str, tuple[dict[str, object], bytes]] = {
    "alternatives": ({"items": {"anyOf": CONSTANTS}}, b"[%b2999]" % (b"2999," * 100_000)),
    "refusals": (
        {"items": {"allOf": [{"not": each} for each in CONSTANTS[:1500]]}},
        b"[%b-1]" % (b"-1," * 10_000),
    ),
    "objects": (
        {"additionalProperties": {"enum": [{"a": number} for number in range(3000)]}},
        b"{%b}" % b",".join(b'"%d":{"a":2999}' % number for number in range(20_000)),
    ),
    "names": (
        {"patternProperties": {f"[a-c]+y{number}$": {} for number in range(2000)}},
        b"{%b}" % b",".join(b'"abcabc%d":1' % number for number in range(50_000)),
    ),
    "states": ({"pattern": "(.*a.{1,100}b){30}x|a"}, b'"%b"' % (b"ab " * 100_000)),
    "digits": (
        {"items": {"allOf": [{"minimum": 7}] * 100}},
        b"[%b7]" % (b"%b," % (b"9" * 4000) * 100),
    ),
    "small": ({"items": {"allOf": [{"maximum": 0.5}] * 1000}}, b"[%b0]" % (b"1e-300," * 1000)),
    "references": (
        {
            "$defs": {"d": {"anyOf": CONSTANTS[:1000]}},
            "items": {"allOf": [{"$ref": "#/$defs/d"}] * 5},
        },
        b"[%b999]" % (b"999," * 10_000),
    ),
}


@pytest.mark.parametrize("trap", TRAPS)
def test_schema_validator_with_work_above_limit_rejects_payload(trap: str) -> None:
    # The validator rejects the payload by the estimate, before the check starts.
    schema, payload = TRAPS[trap]
    schemas = SchemaValidator()
    with contextlib.suppress(SchemaMismatchError):
        check(schemas, topic(schema), b"[]")  # Compile it before the measurement.
    begun = time.process_time()
    with pytest.raises(TooLargeError) as raised:
        check(schemas, topic(schema), b"[]" if "items" in schema else b"{}", payload)
    assert time.process_time() - begun < 1
    assert raised.value.code == "input.too-large"
    assert raised.value.field == "messages[1].data"
    assert "steps" in raised.value.message


@pytest.mark.parametrize("trap", TRAPS)
def test_schema_validator_with_work_below_limit_takes_little_time(
    trap: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The weights of the cost are correct if payloads within the step limit take little time.
    schema, payload = TRAPS[trap]
    steps = schemas_module._compile(schema).cost.steps(payload, msgspec.json.decode, 0)
    monkeypatch.setattr(schemas_module, "WORK_MAX", max(steps, schemas_module.WORK_MAX))
    part = payload
    if steps > 3_000_000:
        # Shorten the payload until its steps are a tenth of the limit.
        value = msgspec.json.decode(payload)
        share = max(1, len(value) * 3_000_000 // steps)
        part = msgspec.json.encode(
            dict(list(value.items())[:share]) if isinstance(value, dict) else value[:share]
        )
    schemas = SchemaValidator()
    check(schemas, topic(schema), b"[]" if part[:1] == b"[" else part)
    begun = time.process_time()
    check(schemas, topic(schema), part)
    assert time.process_time() - begun < 0.5


def test_schema_validator_with_usual_schema_accepts_large_payload() -> None:
    line = b'{"a/b~c": 1, "name": "a, b [c]", "more": [1, 2.5, null], "hash": "1e999"}'
    order = b'{"id":"a","at":"2030-01-01T00:00:00Z","lines":[%b]}' % b",".join([line] * 65_000)
    assert len(order) > 4_500_000
    usual = {**ORDER, "$defs": {"line": {"properties": {"a/b~c": {"minimum": 0}}}}}
    check(SchemaValidator(), topic(usual), order)
    code = {"type": "string", "pattern": "^[A-Z0-9-]{1,40}$", "enum": [f"C{n}" for n in range(200)]}
    wide: dict[str, object] = {
        "items": {
            "required": [f"p{number}" for number in range(30)],
            "properties": {f"p{number}": code for number in range(30)},
            "additionalProperties": False,
        }
    }
    row = b"{%b}" % b",".join(b'"p%d":"C7"' % number for number in range(30))
    check(SchemaValidator(), topic(wide), b"[%b]" % b",".join([row] * 3000))


def test_schema_cost_of_string_with_commas_and_digits_is_exact() -> None:
    schema: dict[str, object] = {"items": {"anyOf": [*CONSTANTS, {"type": "string"}]}}
    check(SchemaValidator(), topic(schema), b'["%b", "%b"]' % (b"[,{" * 100_000, b"9" * 4000))


async def test_schema_validator_lets_other_tasks_run_between_messages() -> None:
    schema: dict[str, object] = {"items": {"anyOf": CONSTANTS}}
    batch = messages(*[b"[%b2999]" % (b"2999," * 20)] * 20)
    turns = 0

    async def take_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    other = asyncio.ensure_future(take_turns())
    await SchemaValidator().check(topic(schema), batch, batch=True)
    other.cancel()
    assert turns >= 10


@pytest.mark.parametrize(
    ("pattern", "least", "most"),
    [
        ("", 0, 0),
        ("abc", 3, 3),
        ("a{5}", 5, 5),
        ("(ab){2,50}c", 101, 101),
        ("((a{10}){10}){10}", 1000, 1000),
        ("(.*a.{1,100}b){30}x", 12_000, 13_000),
        (r"\w{1,64}", 256, 256),
        (r"[\]a{9}]{3}(b|c)*", 12, 18),
        ("[[](.{1,100}){30}", 12_000, 13_000),
        ("a{2,}", 3, 3),
        ("ü{3}", 12, 12),
        ("^[A-Z0-9-]{1,40}$", 41, 46),
        ("[^a]{10}[ä]{10}", 80, 80),
    ],
)
def test_states_of_pattern_counts_expanded_repetitions(pattern: str, least: int, most: int) -> None:
    assert least <= states_of(pattern) <= most


def test_schema_validator_matches_patterns_in_linear_time() -> None:
    begun = time.process_time()
    mismatch({"pattern": "^(a*)*$"}, b'"%bb"' % (b"a" * 50_000))
    assert time.process_time() - begun < 2


def test_schema_validator_checks_formats_in_all_drafts() -> None:
    for draft in (
        "http://json-schema.org/draft-06/schema#",
        "http://json-schema.org/draft-07/schema#",
        "https://json-schema.org/draft/2019-09/schema",
        "https://json-schema.org/draft/2020-12/schema",
    ):
        schema: dict[str, object] = {
            "$schema": draft,
            "$id": "https://example.com/order",
            "definitions": {"mail": {"format": "email"}},
            "properties": {"$ref": {"type": "string"}, "mail": {"$ref": "#/definitions/mail"}},
        }
        check(SchemaValidator(), topic(schema), b'{"mail":"a@example.com","$ref":"x"}')
        assert mismatch(schema, b'{"mail":"nobody"}').path == "/mail"


def test_schema_validator_compiles_schema_once_per_version(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = []
    compile_it = schemas_module._compile
    monkeypatch.setattr(
        schemas_module, "_compile", lambda schema: compiled.append(schema) or compile_it(schema)
    )
    schemas = SchemaValidator()
    for _ in range(3):
        check(schemas, topic({"const": 1}), b"1")
    assert len(compiled) == 1
    # 1 and True are equal in Python, but a new version is compiled in any case.
    check(schemas, topic({"const": True}, version=2), b"true")
    check(schemas, topic({"const": False}, version=2, created_ms=5), b"false")
    assert len(compiled) == 3


def test_schema_validator_drops_least_recently_used_schema(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(schemas_module, "_COMPILED_MAX", 2)
    schemas = SchemaValidator()
    for name in ("a", "b", "a", "c"):
        check(schemas, topic({}, name=name), b"1")
    assert list(schemas._known) == [("default", "a"), ("default", "c")]
