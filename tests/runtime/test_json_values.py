"""JSON values: refusal of NaN and Infinity with their path, and comparison by content."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from waystation import Waystation
from waystation.client.parcels import NewMessage
from waystation.errors import NotFiniteError
from waystation.runtime.json_values import encode_json, same_json

NAN, INFINITY = float("nan"), float("inf")


class Price(msgspec.Struct, rename="camel"):
    """A struct whose field names differ in JSON."""

    in_euros: float
    note: str | None = None


class Pair(msgspec.Struct, array_like=True):
    """A struct that is an array in JSON."""

    first: float
    second: float


@dataclasses.dataclass
class Box:
    """A dataclass with one number."""

    width: float


class Level(enum.Enum):
    """An enumeration of numbers."""

    UNKNOWN = NAN


@pytest.mark.parametrize(
    ("value", "path", "word"),
    [
        (NAN, "data", "NaN"),
        ({"a": [1, {"b": INFINITY}]}, "data.a[1].b", "Infinity"),
        ([[-INFINITY]], "data[0][0]", "-Infinity"),
        ({"price": Price(NAN)}, "data.price.inEuros", "NaN"),
        ([Pair(1.0, NAN)], "data[0][1]", "NaN"),
        ({"box": Box(INFINITY)}, "data.box.width", "Infinity"),
        ({"level": Level.UNKNOWN}, "data.level", "NaN"),
        ({7: (NAN,)}, "data.7[0]", "NaN"),
        ({"a": {NAN}}, "data.a[0]", "NaN"),
        ({"a": {NAN: 1}}, "data.a.nan", "NaN"),
        ([{INFINITY: None}], "data[0].inf", "Infinity"),
        ({-INFINITY: {"b": 1}}, "data.-inf", "-Infinity"),
        ({"null": None, "x" * 500: NAN}, ("data." + "x" * 500)[:200], "NaN"),
    ],
)
def test_encode_json_value_that_is_not_finite_names_its_path(
    value: object, path: str, word: str
) -> None:
    with pytest.raises(NotFiniteError) as refused:
        encode_json(value, field="data")
    assert (refused.value.code, refused.value.field) == ("input.not-finite", path)
    assert f"{path} is {word}," in refused.value.message


def test_encode_json_without_field_starts_error_path_with_property_name() -> None:
    with pytest.raises(NotFiniteError) as refused:
        encode_json({"a": NAN})
    assert refused.value.field == "a"


@pytest.mark.parametrize(
    "value",
    [
        None,
        {"a": None},
        [1e308, -0.0],
        Price(1.5),
        {"raw": msgspec.Raw(b"null")},
        {"nan": 1, 1.5: 2},
    ],
)
def test_encode_json_finite_value_is_as_msgspec_encodes_it(value: object) -> None:
    assert encode_json(value) == msgspec.json.encode(value)


def test_encode_json_finds_number_that_is_not_finite_at_any_depth() -> None:
    value: Any = [NAN, None]
    for _ in range(300):
        value = [value]
    with pytest.raises(NotFiniteError):
        encode_json(value)


SENT: dict[str, tuple[Callable[[Waystation], object], str]] = {
    "start": (lambda ws: ws.transactions.start("p", {"a": [NAN]}), "data.a[0]"),
    "metadata": (
        lambda ws: ws.transactions.start("p", metadata={"mine": INFINITY}),
        "metadata.mine",
    ),
    "switch": (lambda ws: ws.transactions.set_switch("tx-1", "s", NAN), "value"),
    "pipeline": (
        lambda ws: ws.pipelines.put("p", [{"type": "a", "options": {"x": NAN}}]),
        "steps[0].options.x",
    ),
    "produce": (lambda ws: ws.topics.produce("t", {"a": NAN}), "data.a"),
    "produce_many": (lambda ws: ws.topics.produce_many("t", [NewMessage([NAN])]), "data[0]"),
    "publish": (lambda ws: ws.channels.publish("c", {"a": NAN}), "content.a"),
    "publish_many": (lambda ws: ws.channels.publish_many("c", [("m-1", [NAN])]), "content[0]"),
    "send": (lambda ws: ws.pools.send("p", "key", {"a": NAN}), "data.a"),
    "pool": (lambda ws: ws.pools.create("p", attempts=NAN), "options.attempts"),  # type: ignore[arg-type]
    "redrive": (lambda ws: ws.subscriptions.redrive("s", group="g", rate=INFINITY), "rate"),
}


@pytest.mark.parametrize("verb", SENT)
def test_client_value_that_is_not_finite_is_refused_before_it_is_sent(verb: str) -> None:
    send, path = SENT[verb]
    # No server has this address. The client refuses the payload before it connects.
    with Waystation("http://127.0.0.1:9") as ws, pytest.raises(NotFiniteError) as refused:
        send(ws)
    assert refused.value.field == path


SAME = [
    (b'{"a":1,"b":[2]}', b' { "b" : [ 2 ] , "a" : 1 } '),
    (b"1.0", b"1"),
    (b"1e2", b"100.00"),
    (b'"\\u00e9"', '"é"'.encode()),
    (b"12345678901234567890", b"12345678901234567890 "),
    (b"1" + b"0" * 5000, b"1" + b"0" * 5000 + b" "),
    (b'"\\ud83d"', b'"\\uD83D"'),
    (b'{"a":1,"a":2}', b'{"a":2}'),
    (b"1e99999999999999999999", b"1e99999999999999999999 "),
    (b"no JSON", b"no JSON"),
]
DIFFERENT = [
    (b'{"a":1}', b'{"a":true}'),
    (b"0", b"false"),
    (b"null", b"{}"),
    (b"[]", b"{}"),
    (b"[1,2]", b"[2,1]"),
    (b"[1]", b"[1,1]"),
    (b'"1"', b"1"),
    (b"12345678901234567890", b"12345678901234567891"),
    (b"9007199254740993", b"9007199254740992"),
    (b"0.1", b"0.10000000000000000001"),
    (b"1e99999999999999999999", b'"1e99999999999999999999"'),
    (b'{"a":{"b":[{"c":1}]}}', b'{"a":{"b":[{"c":2}]}}'),
    (b"[" * 20_000 + b"]" * 20_000, b"[" * 20_000 + b" " + b"]" * 20_000),
    (b"no JSON", b"no JSON "),
]


@pytest.mark.parametrize(("first", "second"), SAME)
def test_same_json_is_true_for_equal_content(first: bytes, second: bytes) -> None:
    assert same_json(first, second)
    assert same_json(second, first)


@pytest.mark.parametrize(("first", "second"), DIFFERENT)
def test_same_json_is_false_for_different_content(first: bytes, second: bytes) -> None:
    assert not same_json(first, second)
    assert not same_json(second, first)
