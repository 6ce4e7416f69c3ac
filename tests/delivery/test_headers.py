"""S-05: a header that cannot be sent, or that is ours, is refused at creation."""

from __future__ import annotations

import pytest

from waystation.delivery.headers import check_headers
from waystation.errors import InvalidInputError


@pytest.mark.parametrize(
    "header",
    [
        ("Host", "evil"),
        ("content-length", "1"),
        ("Transfer-Encoding", "chunked"),
        ("webhook-id", "1"),
        ("Webhook-Signature", "v1,x"),
        ("Connection", "close"),
        ("Authorization", "Bearer x"),
        ("bad name", "x"),
        ("bad:name", "x"),
        ("", "x"),
        ("x", "a\r\nHost: evil"),
        ("x", "a\x00b"),
        ("x", "ä"),
        ("x", "a" * 4097),
    ],
    ids=str,
)
def test_a_header_that_breaks_or_fakes_is_refused(header: tuple[str, str]) -> None:
    with pytest.raises(InvalidInputError) as raised:
        check_headers([header])

    assert raised.value.field == "headers"


def test_ordinary_headers_pass_in_order_with_repetitions() -> None:
    headers = (("X-Token", "x"), ("X-A", "1, 2"), ("x-a", "3"))

    assert check_headers(headers) == headers


def test_there_is_a_most() -> None:
    with pytest.raises(InvalidInputError):
        check_headers([("x", "y")] * 51)
