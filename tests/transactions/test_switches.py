"""Names and values of switches: what is kept comes back as it was, and the rest is refused."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waystation.errors import SwitchInvalidError
from waystation.transactions.switches import (
    Scalar,
    check_switch,
    encode_value,
    parse_switches,
    seen_text,
)

scalars = st.one_of(
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(st.characters(categories=("L", "N", "P", "S"), exclude_characters=","), max_size=32),
)


@given(values=st.dictionaries(st.from_regex(r"[0-9A-Za-z][\w.-]{0,31}", fullmatch=True), scalars))
def test_whatever_is_taken_comes_back_as_it_was(values: dict[str, Scalar]) -> None:
    kept = ",".join(f"!{name}={encode_value(value)}" for name, value in values.items())
    found = parse_switches(kept.encode())
    assert found == values
    assert [type(each) for each in found.values()] == [type(each) for each in values.values()]
    # A step acknowledges by what it has seen: that must be the very text.
    assert seen_text(found) == kept.replace("!", "") or "!" in "".join(map(str, values.values()))


def test_false_does_not_become_true() -> None:
    assert parse_switches(f"go={encode_value(False)}".encode()) == {"go": False}


@pytest.mark.parametrize(
    "value",
    [
        "x" * 33,
        "a b",
        "a,b",
        "a\tb",
        "a\x00b",
        "\ud800",
        "\u00a0",
        math.nan,
        math.inf,
        2**64,
        10**400,
        [],
        {},
        b"x",
    ],
    ids=repr,
)
def test_a_value_that_cannot_be_kept_is_refused_and_the_rule_is_told(value: object) -> None:
    with pytest.raises(SwitchInvalidError) as caught:
        encode_value(value)  # type: ignore[arg-type]
    assert caught.value.code == "transaction.switch-invalid"
    assert "32 characters" in caught.value.hint


@pytest.mark.parametrize("name", ["", "-", "!go", "a b", "a,b", "a=b", "x" * 33, "ü", "a:b"])
def test_a_name_that_cannot_be_kept_is_refused(name: str) -> None:
    with pytest.raises(SwitchInvalidError):
        check_switch(name)


def test_what_was_deleted_is_not_there() -> None:
    assert parse_switches(b"!gone,go=1") == {"go": 1}
    assert parse_switches(b"") == {}


def test_a_step_also_acknowledges_what_was_not_set() -> None:
    assert seen_text({"a": None, "b": "yes", "c": False}) == 'a,b="yes",c=false'
