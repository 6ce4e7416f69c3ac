"""The tree of errors: one root, stable codes, a sentence and a way out."""

from __future__ import annotations

import inspect

import pytest

from waystation import errors
from waystation.errors import StoreReplyError, WaystationError

CLASSES = [
    each
    for _, each in inspect.getmembers(errors, inspect.isclass)
    if issubclass(each, WaystationError)
]


def test_no_two_errors_share_a_code() -> None:
    codes = [each.code for each in CLASSES]
    assert len(set(codes)) == len(codes)


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_every_error_says_when_it_is_raised(kind: type[WaystationError]) -> None:
    assert kind.__doc__
    assert kind.__doc__.rstrip().endswith(".")
    assert "code" in vars(kind), "its own code, not that of its parent"


def test_an_error_is_a_sentence_with_a_hint() -> None:
    error = WaystationError("It broke.", hint="Try again.")
    assert str(error) == "It broke. Try again."
    assert (error.message, error.hint) == ("It broke.", "Try again.")
    assert str(WaystationError()) == "internal"
    assert StoreReplyError("ERR no").reply == "ERR no"
