"""Redaction of JSON: named values are replaced, and all other bytes stay as they are."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from waystation.errors import InvalidInputError
from waystation.messages.redaction import (
    FULL,
    RedactionPolicy,
    check_redaction,
    redaction_policy,
    strictest_policy,
)

GONE = '"[redacted]"'


def redacted(text: str, *pointers: str) -> str | None:
    kept = RedactionPolicy("full", pointers).keep_json(text.encode())
    return None if kept is None else kept.decode()


@pytest.mark.parametrize(
    ("text", "pointers", "kept"),
    [
        ('{"card": {"no": 1, "x": 2}}', ("/card/no",), f'{{"card":{{"no":{GONE},"x":2}}}}'),
        ('{"a": [1, {"b": 2}]}', ("/a/1/b", "/a/0"), f'{{"a":[{GONE},{{"b":{GONE}}}]}}'),
        # A pointer named twice, or below a redacted value
        ('{"a": {"b": 1}}', ("/a", "/a/b"), f'{{"a":{GONE}}}'),
        ('{"a": {"b": 1}}', ("/a/b", "/a"), f'{{"a":{GONE}}}'),
        # The whole document, and names with escaped characters
        ("[1]", ("",), GONE),
        ('{"a/b": 1, "c~d": 2, "": 3}', ("/a~1b", "/c~0d", "/"), None),
        # Pointers to missing or impossible places change nothing
        ('{"a": 1.00, "b": "é"}', ("/z", "/a/b", "/a/0"), '{"a":1.00,"b":"é"}'),
        ("[1, 2]", ("/01", "/-", "/2", "/x", "/-1"), "[1,2]"),
        ("12345678901234567890123.50", ("/a",), "12345678901234567890123.50"),
        # A name with a Unicode escape is the same name
        (r'{"\u0061": 1}', ("/a",), f'{{"a":{GONE}}}'),
    ],
)
def test_keep_json_replaces_named_values_and_keeps_other_bytes(
    text: str, pointers: tuple[str, ...], kept: str | None
) -> None:
    kept = kept or f'{{"a/b":{GONE},"c~d":{GONE},"":{GONE}}}'
    assert redacted(text, *pointers) == kept


def test_keep_json_redacts_every_value_of_repeated_name() -> None:
    assert "secret" not in str(redacted('{"a": {"no": "secret"}, "a": 1}', "/a/no"))
    assert "secret" not in str(redacted('{"a": "secret", "a": 1}', "/a"))
    assert "secret" not in str(redacted('{"x": {"a": "secret", "a": 1}}', "/x/b"))


@pytest.mark.parametrize("text", [b"", b"no json", b'{"a": 1', b"\xff\xfe", b"[" * 100_000])
def test_keep_json_drops_content_that_is_not_json(text: bytes) -> None:
    assert RedactionPolicy("full", ("/a",)).keep_json(text) is None
    assert FULL.keep_json(text) == text


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3)
        ),
        max_leaves=12,
    ),
    st.lists(st.sampled_from("abc01"), min_size=1, max_size=4),
)
@settings(deadline=None)
def test_keep_json_leaves_no_value_at_pointer(value: object, tokens: list[str]) -> None:
    text = msgspec.json.encode(value)
    kept = RedactionPolicy("full", ("/" + "/".join(tokens),)).keep_json(text)
    assert kept is not None
    assert msgspec.json.decode(kept) == _replaced(value, tokens)


def _replaced(value: object, tokens: list[str]) -> object:
    if not tokens:
        return "[redacted]"
    first, *rest = tokens
    if isinstance(value, dict) and first in value:
        return {**value, first: _replaced(value[first], rest)}
    if isinstance(value, list) and first.isdigit() and int(first) < len(value):
        return [_replaced(each, rest) if n == int(first) else each for n, each in enumerate(value)]
    return value


def test_strictest_policy_keeps_only_what_all_keep() -> None:
    redacting, more = redaction_policy("full", ["/a"]), redaction_policy("full", ["/b", "/a"])
    headers, none = redaction_policy("headers", []), redaction_policy("none", [])
    assert redaction_policy("full", []) is FULL
    assert strictest_policy([FULL, FULL]) is FULL
    assert strictest_policy([redacting, FULL, more]) == RedactionPolicy("full", ("/a", "/b"))
    assert strictest_policy([none, headers, redacting]).record == "none"
    assert [each.label for each in (FULL, redacting, headers, none)] == [
        "full",
        "redacted",
        "headers",
        "none",
    ]
    assert headers.keep_json(b"1") is None
    assert redacting.keep_opaque(b"packed") is None


@pytest.mark.parametrize(
    ("record", "redact", "field"),
    [
        ("all", [], "record"),
        ("full", ["card"], "redact"),
        ("full", ["/a~2"], "redact"),
        ("full", ["/a~"], "redact"),
        ("full", "/a", "redact"),
        ("full", ["/a"] * 101, "redact"),
        ("full", ["/" + "a" * 1000], "redact"),
    ],
)
def test_check_redaction_rejects_invalid_policy(record: str, redact: list[str], field: str) -> None:
    with pytest.raises(InvalidInputError) as refused:
        check_redaction(record, redact)
    assert refused.value.field == field
