"""Messages: what is accepted is JSON, and what was accepted can be read again."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waystation.channels.model import decode_message, encode_message
from waystation.runtime.json_text import is_json, load_json

finite = st.floats(allow_nan=False, allow_infinity=False)
json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@pytest.mark.parametrize(
    "content",
    [
        b"null",
        b"1",
        b"-0",
        b"1.0",
        b"1e400",
        b"[1e999]",
        b"12345678901234567890",
        b"1" * 5000,
        b'"x"',
        b'""',
        b'"\\ud83d\\ude00"',
        b'"\\ud83d"',
        b'"\\ud800"',
        b'"\\udc00x"',
        b'["\\ud83d",1e999]',
        b'[1e999,"\\ud800"]',
        b'"\\\\ud83d"',
        b'"\\ud83d\\ud83d\\ude00\\ude00"',
        b'{"\\uDfFf":"\\\\\\uD800"}',
        '"ä\u2028😀"'.encode(),
        b"[]",
        b"{}",
        b'{"a":1,"a":2}',
        b" \t\r\n[ 1 , 2 ]\n",
        b"[" * 900 + b"]" * 900,
    ],
    ids=lambda content: content[:20],
)
def test_any_json_value_is_accepted_and_read_back_byte_for_byte(content: bytes) -> None:
    assert is_json(content)
    message = decode_message(encode_message("m1", content.strip(b" \t\r\n")))
    assert message is not None
    assert (message.id, bytes(message.content)) == ("m1", content.strip(b" \t\r\n"))


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b" ",
        b"{",
        b"}",
        b"1 2",
        b"01",
        b"1.",
        b"+1",
        b"NaN",
        b"[NaN]",
        b"-Infinity",
        b"[1e999,NaN]",
        b"'x'",
        b'"\x01"',
        b'"\\x"',
        b'"\\ud83"',
        b'"\\ud83g"',
        b'"\\ud83d',
        b'"\\ud83d\\"',
        b"\\ud83d",
        b'["\\ud83d",NaN]',
        b'["\\ud83d",]',
        b'"\\ud83d\xff"',
        b'"\xff"',
        b'[1e999,"\xff"]',
        b"\xef\xbb\xbf1",
        b"\x00",
        b"1\x00",
        b"\xff\xfe1\x00",
        b"[1,]",
        b'{"a":1,}',
        b"{a:1}",
        b"/**/1",
        b"True",
        b"nul",
        b"[" * 100_000 + b"]" * 100_000,
        b"[1e999," + b"[" * 100_000 + b"]" * 100_000 + b"]",
        b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
    ],
    ids=lambda content: content[:20],
)
def test_what_is_no_json_is_refused(content: bytes) -> None:
    assert not is_json(content)


def further_down(frames: int, work: Callable[[], object]) -> object:
    """Does `work` with less of the stack left."""
    return further_down(frames - 1, work) if frames else work()


def test_what_was_accepted_is_readable_however_full_the_stack_is() -> None:
    deepest = max(depth for depth in range(1, 2000) if is_json(b"[" * depth + b"]" * depth))
    content = b"[" * deepest + b"]" * deepest

    message = further_down(500, lambda: decode_message(encode_message("m1", content)))

    assert message is not None
    assert (message.id, bytes(message.content)) == ("m1", content)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "body",
    [b"", b"null", b"[]", b'{"id":"m1"}', b'{"content":1}', b'{"id":1,"content":1}', b'{"id":"m1"'],
)
def test_what_another_program_left_there_is_no_message(body: bytes) -> None:
    assert decode_message(body) is None


@given(json_values)
def test_what_another_library_writes_is_accepted(value: object) -> None:
    assert is_json(json.dumps(value).encode())
    assert is_json(json.dumps(value, ensure_ascii=False, indent=1).encode())


@given(st.text(st.characters(exclude_categories=())), st.binary(max_size=8))
def test_decode_message_of_any_string_bytes_returns_them(text: str, junk: bytes) -> None:
    escaped = json.dumps(text).encode()[:-1]
    junk = junk.translate(None, delete=bytes(range(0x20)) + b'"\\')
    content = b'%b%b"' % (escaped, junk)

    message = decode_message(encode_message("m1", content))

    assert message is not None
    assert bytes(message.content) == content
    assert load_json(content) == json.loads(content.decode(errors="replace"))
