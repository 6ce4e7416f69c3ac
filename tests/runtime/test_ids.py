"""Names that users choose, and ids that the process creates."""

from __future__ import annotations

import pytest

from waystation.errors import InvalidInputError
from waystation.runtime.ids import (
    CountingIds,
    RandomIds,
    SequentialIds,
    is_name,
    require_name,
)


@pytest.mark.parametrize("name", ["a", "0", "orders", "a-b_c", "9" * 63])
def test_is_name_accepts_short_plain_names(name: str) -> None:
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
def test_is_name_rejects_characters_of_keys_and_paths(name: str) -> None:
    # S-09: a name cannot change the meaning of a key or path that contains it.
    assert not is_name(name)
    with pytest.raises(InvalidInputError) as caught:
        require_name(name, field="channel")
    assert caught.value.field == "channel"
    assert len(str(caught.value)) < 300


def test_require_name_with_huge_value_shortens_it_in_error() -> None:
    with pytest.raises(InvalidInputError) as caught:
        require_name("x" * 1_000_000, field="channel")
    assert len(str(caught.value)) < 300


def test_random_ids_are_distinct_hex_of_requested_size() -> None:
    tokens = {RandomIds().token(8) for _ in range(1000)}
    assert len(tokens) == 1000
    assert {len(token) for token in tokens} == {16}
    assert all(int(token, 16) >= 0 for token in tokens)


def test_counting_ids_are_predictable() -> None:
    identity = CountingIds()
    assert [identity.token(2), identity.token(4)] == ["0001", "00000002"]


def test_sequential_ids_are_distinct_with_prefix_per_source() -> None:
    first, second = SequentialIds(RandomIds()), SequentialIds(RandomIds())
    made = [maker.token(16) for maker in (first, second) for _ in range(1000)]
    assert len(set(made)) == 2000
    assert {len(each) for each in made} == {32}
    assert len({each[:20] for each in made}) == 2


def test_sequential_ids_made_together_continue_those_made_singly() -> None:
    ids = SequentialIds(CountingIds())
    prefix = "0" * 19 + "1"
    assert ids.tokens(16, 2) == [prefix + "0" * 11 + "1", prefix + "0" * 11 + "2"]
    assert ids.token(16) == prefix + "0" * 11 + "3"
    assert ids.tokens(16, 0) == []
