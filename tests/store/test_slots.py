"""Slots: which one a key has, and which one a command goes to."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.kit.cluster import RealCluster, real_cluster
from waystation.store.slots import slot_of, slot_of_command
from waystation.store.wire import pack


@pytest.fixture(scope="module")
def cluster() -> Iterator[RealCluster]:
    with real_cluster() as cluster:
        yield cluster


def test_a_key_has_the_slot_that_a_node_says(cluster: RealCluster) -> None:
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
def test_a_command_goes_where_its_first_key_is(
    command: tuple[str | int, ...], key: str | None
) -> None:
    assert slot_of_command(pack(command)) == (None if key is None else slot_of(key))
