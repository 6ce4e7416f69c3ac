"""Slots: the slot of a key, the slot of a command, and keys in the slot of another key."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.helpers.clusters import RealCluster, real_cluster
from waystation.store.connection import pack
from waystation.store.keys import key_beside
from waystation.store.slots import slot_of, slot_of_command


@pytest.fixture(scope="module")
def cluster() -> Iterator[RealCluster]:
    with real_cluster() as cluster:
        yield cluster


def test_slot_of_key_is_that_of_the_server(cluster: RealCluster) -> None:
    names = ["", "a", "{a}b", "{}a", "{a", "}a{", "a{b}{c}", "{{a}}b", "ä{ö}ü", "x" * 3000]
    for name in names:
        assert (
            slot_of(name)
            == slot_of(name.encode())
            == cluster.primaries[0].ask("CLUSTER", "KEYSLOT", name)
        ), name


@pytest.mark.parametrize(
    ("command", "key"),
    [
        (("GET", "a"), "a"),
        (("get", "a"), "a"),
        (("EVALSHA", "0" * 40, 2, "a", "b", "x"), "a"),
        (("EVAL", "return 1\r\n", 1, "{a\r\n}"), "{a\r\n}"),
        (("EVAL", "return 1", 0), None),
        (("MEMORY", "USAGE", "a"), "a"),
        (("PUBLISH", "topic", "a"), "topic"),
        (("UNLINK", "{a}1", "{a}2"), "{a}1"),
        (("PING",), None),
        (("CONFIG", "GET", "a"), None),
        (("SCAN", 0, "MATCH", "a"), None),
    ],
)
def test_slot_of_command_is_that_of_its_first_key(
    command: tuple[str | int, ...], key: str | None
) -> None:
    assert slot_of_command(pack(command)) == (None if key is None else slot_of(key))


@pytest.mark.parametrize("name", ["a", "a b", "a{b", "{t}a", "a{t}b", "{t}{u}", "{{t}", "a{t}}"])
def test_key_beside_name_is_in_slot_of_name(name: str) -> None:
    beside = key_beside(name, "taken")
    assert slot_of(beside) == slot_of(name)
    assert beside != name


@pytest.mark.parametrize("name", ["a}", "{}a", "}a{b", "a{}b{c}"])
def test_key_beside_name_with_brace_that_ends_no_tag_raises(name: str) -> None:
    with pytest.raises(ValueError, match="closing brace"):
        key_beside(name, "taken")


def test_key_beside_name_without_tag_keeps_its_known_form() -> None:
    assert key_beside("acapy_outbound", "taken") == "{acapy_outbound}.taken"
