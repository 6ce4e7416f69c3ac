"""JSON Schemas of topics: what does not match is named, bad schemas and traps are refused."""

from __future__ import annotations

import asyncio
import contextlib
import time

import msgspec
import pytest

from waystation.errors import SchemaInvalidError, SchemaMismatchError, TooLargeError
from waystation.messages.envelope import Envelope
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


def test_without_a_schema_everything_is_accepted() -> None:
    check(SchemaValidator(), topic(None), b"\xff\x00")


def test_what_matches_is_accepted() -> None:
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
        (b"[" * 100_000 + b"]" * 100_000, "", "nested too deep"),
    ],
)
def test_a_mismatch_names_the_first_failing_path(payload: bytes, path: str, reason: str) -> None:
    error = mismatch(ORDER, payload)
    assert error.code == "topic.schema-mismatch"
    assert (error.path, error.position) == (path, 0)
    assert reason in error.message


def test_a_mismatch_in_a_batch_names_the_message() -> None:
    error = mismatch(ORDER, b'{"id":"a"}', b'{"id":"b"}', b'{"id":3}', b"{}")
    assert (error.position, error.field, error.path) == (2, "messages[2].data", "/id")
    assert error.message.startswith("Message 2 ")


async def test_a_batch_of_one_is_told_as_a_batch() -> None:
    with pytest.raises(SchemaMismatchError) as raised:
        await SchemaValidator().check(topic(ORDER), messages(b"{}"), batch=True)
    assert (raised.value.position, raised.value.field) == (0, "messages[0].data")


def test_an_error_never_quotes_the_payload_and_is_short() -> None:
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
def test_a_bad_schema_is_refused_with_its_reason(schema: dict[str, object], reason: str) -> None:
    with pytest.raises(SchemaInvalidError) as raised:
        check_schema(schema)
    assert reason in raised.value.message
    assert raised.value.code == "topic.schema-invalid"


def test_a_schema_without_end_or_bottom_is_refused() -> None:
    endless: dict[str, object] = {}
    endless["not"] = endless
    deep: dict[str, object] = {}
    for _ in range(60):
        deep = {"properties": {"a": deep}}
    chain: dict[str, object] = {
        f"d{n}": {"not": {"$ref": f"#/$defs/d{n + 1}"}} for n in range(1000)
    }
    chain["d1000"] = {}
    # Deep enough alone, too deep where it is referred to.
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
    """Each definition asks for the next one twice: 2 ** 30 checks in two kilobytes."""
    steps: dict[str, object] = {
        f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(30)
    }
    steps["d30"] = {"type": "object"}
    return {"$defs": steps, "$ref": "#/$defs/d0"}


def unevaluated(levels: int) -> dict[str, object]:
    """Each level looks at all below it again."""
    schema: dict[str, object] = {"properties": {"a": True}}
    for _ in range(levels):
        schema = {"allOf": [schema], "unevaluatedProperties": False}
    return schema


def unevaluated_parts() -> dict[str, object]:
    """The same, each level about a part of the value."""
    schema: dict[str, object] = {}
    for _ in range(20):
        schema = {"anyOf": [{"properties": {"a": schema}}], "unevaluatedProperties": False}
    return schema


def unevaluated_references() -> dict[str, object]:
    """The same, by references."""
    steps: dict[str, object] = {
        f"d{n}": {"$ref": f"#/$defs/d{n + 1}", "unevaluatedProperties": False} for n in range(25)
    }
    steps["d25"] = {"properties": {"a": True}}
    return {"$defs": steps, "$ref": "#/$defs/d0"}


@pytest.mark.parametrize(
    "trap", [doubling(), unevaluated(30), unevaluated_parts(), unevaluated_references()]
)
def test_a_small_schema_that_asks_for_endless_work_is_refused(trap: dict[str, object]) -> None:
    with pytest.raises(SchemaInvalidError, match=r"more than .* values"):
        check_schema(trap)


def test_strict_objects_inside_one_another_are_no_trap() -> None:
    schema: dict[str, object] = {"type": "string"}
    for _ in range(30):
        schema = {"properties": {"a": schema}, "unevaluatedProperties": False}
    check(SchemaValidator(), topic(schema), b'{"a":{"a":{}}}')
    assert mismatch(schema, b'{"a":{"a":{"b":1}}}').path == "/a/a"


def test_the_largest_schema_that_is_accepted_costs_little() -> None:
    wide: dict[str, object] = {"$defs": {"d": {"enum": [*range(100)]}}}
    wide["allOf"] = [{"$ref": "#/$defs/d"}] * 190
    for each, payload in ((unevaluated(7), b'{"a":1}'), (wide, b"99")):
        schemas = SchemaValidator()
        check(schemas, topic(each), payload)
        begun = time.process_time()
        check(schemas, topic(each), payload)
        assert time.process_time() - begun < 0.05


CONSTANTS = [{"const": number} for number in range(3000)]
#: What many payloads can be asked to do, each worse than it looks, with a payload that is accepted.
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
def test_schema_and_payload_together_may_not_ask_for_endless_work(trap: str) -> None:
    """Work is the product of both; it is refused before it is begun, and takes no time."""
    schema, payload = TRAPS[trap]
    schemas = SchemaValidator()
    with contextlib.suppress(SchemaMismatchError):
        check(schemas, topic(schema), b"[]")  # Compiled, which is not what is measured.
    begun = time.process_time()
    with pytest.raises(TooLargeError) as raised:
        check(schemas, topic(schema), b"[]" if "items" in schema else b"{}", payload)
    assert time.process_time() - begun < 1
    assert raised.value.code == "input.too-large"
    assert raised.value.field == "messages[1].data"
    assert "steps" in raised.value.message


@pytest.mark.parametrize("trap", TRAPS)
def test_what_is_just_within_the_bound_of_work_is_checked_soon(
    trap: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The weights are honest: the bound of a step is a bound of time."""
    schema, payload = TRAPS[trap]
    steps = schemas_module._compile(schema).cost.steps(payload, msgspec.json.decode, 0)
    monkeypatch.setattr(schemas_module, "WORK_MAX", max(steps, schemas_module.WORK_MAX))
    part = payload
    if steps > 3_000_000:
        # As much of it as a tenth of the bound allows.
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


def test_large_payloads_of_usual_schemas_are_accepted() -> None:
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


def test_texts_full_of_commas_and_digits_are_no_more_work_than_they_are() -> None:
    schema: dict[str, object] = {"items": {"anyOf": [*CONSTANTS, {"type": "string"}]}}
    check(SchemaValidator(), topic(schema), b'["%b", "%b"]' % (b"[,{" * 100_000, b"9" * 4000))


async def test_others_have_their_turn_between_the_messages_of_a_batch() -> None:
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
def test_states_of_a_pattern_are_counted_with_repetitions_written_out(
    pattern: str, least: int, most: int
) -> None:
    assert least <= states_of(pattern) <= most


def test_patterns_take_linear_time() -> None:
    begun = time.process_time()
    mismatch({"pattern": "^(a*)*$"}, b'"%bb"' % (b"a" * 50_000))
    assert time.process_time() - begun < 2


def test_common_drafts_are_understood_and_formats_checked_in_each() -> None:
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


def test_a_schema_is_compiled_once_for_each_version(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = []
    compile_it = schemas_module._compile
    monkeypatch.setattr(
        schemas_module, "_compile", lambda schema: compiled.append(schema) or compile_it(schema)
    )
    schemas = SchemaValidator()
    for _ in range(3):
        check(schemas, topic({"const": 1}), b"1")
    assert len(compiled) == 1
    # Python takes 1 and True for the same; a new version is compiled whatever it looks like.
    check(schemas, topic({"const": True}, version=2), b"true")
    check(schemas, topic({"const": False}, version=2, created_ms=5), b"false")
    assert len(compiled) == 3


def test_compiled_schemas_are_bounded_and_the_least_used_is_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(schemas_module, "_COMPILED_MAX", 2)
    schemas = SchemaValidator()
    for name in ("a", "b", "a", "c"):
        check(schemas, topic({}, name=name), b"1")
    assert list(schemas._known) == [("default", "a"), ("default", "c")]
