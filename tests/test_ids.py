"""Names that people choose and ids that we make."""

from __future__ import annotations

import pytest

from waystation.errors import InvalidInputError
from waystation.runtime.ids import (
    CountingIdentity,
    RandomIdentity,
    SequentialIdentity,
    is_name,
    require_name,
)


@pytest.mark.parametrize("name", ["a", "0", "orders", "a-b_c", "9" * 63])
def test_a_name_is_short_and_plain(name: str) -> None:
    assert is_name(name)
    assert require_name(name, field="channel") == name


@pytest.mark.parametrize(
    "name",
    [
        "",
        "A",
        "-a",
        "_a",
        "a" * 64,
        "a.b",
        "a b",
        "a\n",
        "é",
        "a/b",
        "*",
        "a{b}",
        "a:b",
        "a\0",
        "٣",
    ],
)
def test_what_could_leave_a_key_or_a_path_is_no_name(name: str) -> None:
    """S-09."""
    assert not is_name(name)
    with pytest.raises(InvalidInputError) as caught:
        require_name(name, field="channel")
    assert caught.value.field == "channel"
    assert len(str(caught.value)) < 300


def test_a_huge_name_is_not_repeated_in_its_error() -> None:
    with pytest.raises(InvalidInputError) as caught:
        require_name("x" * 1_000_000, field="channel")
    assert len(str(caught.value)) < 300


def test_random_ids_are_hex_of_the_asked_size_and_do_not_repeat() -> None:
    tokens = {RandomIdentity().token(8) for _ in range(1000)}
    assert len(tokens) == 1000
    assert {len(token) for token in tokens} == {16}
    assert all(int(token, 16) >= 0 for token in tokens)


def test_counting_ids_are_predictable() -> None:
    identity = CountingIdentity()
    assert [identity.token(2), identity.token(4)] == ["0001", "00000002"]


def test_sequential_ids_are_all_different_and_begin_like_no_other_makers() -> None:
    first, second = SequentialIdentity(RandomIdentity()), SequentialIdentity(RandomIdentity())
    made = [maker.token(16) for maker in (first, second) for _ in range(1000)]
    assert len(set(made)) == 2000
    assert {len(each) for each in made} == {32}
    assert len({each[:20] for each in made}) == 2
