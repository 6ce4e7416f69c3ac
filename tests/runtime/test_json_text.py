"""JSON texts: the limit of their nesting."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waystation.errors import JsonTooDeepError
from waystation.runtime import json_text
from waystation.runtime.json_text import JSON_DEPTH_MAX, check_depth, is_json, is_too_deep
from waystation.runtime.json_values import encode_json


def nested(depth: int) -> bytes:
    """Return arrays and objects in turn, with brackets and quotes in their strings."""
    even, odd = b'["]}\\\\", ', b'{"[{\\"[": '
    opened = b"".join((even, odd)[level % 2] for level in range(depth))
    return opened + b"1" + b"".join(b"]}"[level % 2 :][:1] for level in reversed(range(depth)))


def test_is_too_deep_at_limit_returns_false() -> None:
    assert json.loads(nested(JSON_DEPTH_MAX))
    assert not is_too_deep(nested(JSON_DEPTH_MAX))
    assert is_json(nested(JSON_DEPTH_MAX))


@pytest.mark.parametrize("depth", [JSON_DEPTH_MAX + 1, 1000, 100_000])
def test_is_too_deep_above_limit_returns_true(depth: int) -> None:
    assert is_too_deep(nested(depth))
    assert not is_json(nested(depth))
    with pytest.raises(JsonTooDeepError, match="the limit is 900 levels") as raised:
        check_depth(nested(depth), field="data")
    assert (raised.value.code, raised.value.field) == ("input.too-deep", "data")


def test_is_too_deep_counts_no_brackets_of_strings_and_no_siblings() -> None:
    wide = b"[" + b",".join([b"[{}]"] * 1000) + b"]"
    assert not is_too_deep(wide)
    assert not is_too_deep(json.dumps(["[" * 5000, '"[{' * 5000, "\\" * 3 + "[" * 5000]).encode())


@given(st.recursive(st.text('[]{}"\\a') | st.none(), lambda each: st.lists(each, max_size=4)))
def test_is_too_deep_agrees_with_decoded_value(value: Any) -> None:
    text = json.dumps(value).encode()

    with pytest.MonkeyPatch.context() as patch:
        for limit in (0, 1, 2, 3, 5):
            patch.setattr(json_text, "JSON_DEPTH_MAX", limit)
            assert is_too_deep(text) == (depth_of(value) > limit)


def test_encode_json_of_value_that_encoder_cannot_write_names_field() -> None:
    value: list[Any] = []
    for _ in range(100_000):
        value = [value]

    with pytest.raises(JsonTooDeepError, match="data is nested too deeply"):
        encode_json(value, field="data")


def depth_of(value: Any) -> int:
    return 1 + max(map(depth_of, value), default=0) if isinstance(value, list) else 0
