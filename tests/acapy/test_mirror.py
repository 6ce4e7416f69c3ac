"""The mirror's own keys: older versions are refused, and nothing is pushed twice."""

from __future__ import annotations

import asyncio
import json

import pytest

from tests.helpers.store_faults import store_at
from waystation.acapy.agents import read_keys, write_keys
from waystation.acapy.mediator import adoptions, base_of
from waystation.acapy.mirror import LISTS, OWNERS, Mirror
from waystation.store.embedded.server import EmbeddedServer


def message(number: int) -> bytes:
    return (
        json.dumps({"waystation": number}, separators=(",", ":")).encode()[:-1] + b',"payload":""}'
    )


async def test_an_older_version_is_refused_and_the_same_one_is_not(
    store_server: EmbeddedServer,
) -> None:
    async with store_at(store_server.address) as store:
        await store.call("FLUSHALL")
        mirror = Mirror(store, inbound="acapy_inbound")
        assert await mirror.write(LISTS, 5, {"a": write_keys(["k"]), "b": write_keys([])})
        assert await store.call("GET", "{uid_recip_keys_map}.version") == b"5"
        assert not await mirror.write(LISTS, 4, {"a": write_keys([])}, ["b"])
        assert await mirror.write(LISTS, 5, {}, ["b"])
        version, found = await mirror.lists()
        assert (version, list(found)) == (5, ["a"])
        assert read_keys(found["a"]) == {"k"}
        assert await mirror.write(OWNERS, 4, {"k": "a"}), "each has a version of its own"
        assert await mirror.write_iterator(7, 1)
        assert not await mirror.write_iterator(6, 0)
        assert await store.call("GET", "round_robin_iterator") == b"1"


async def test_of_two_writers_the_later_truth_stays(store_server: EmbeddedServer) -> None:
    async with store_at(store_server.address) as one, store_at(store_server.address) as two:
        await one.call("FLUSHALL")
        mirrors = [Mirror(each, inbound="acapy_inbound") for each in (one, two)]
        for version in range(0, 40, 2):
            await asyncio.gather(
                *(
                    mirror.write(LISTS, version + more, {"a": write_keys([str(version + more)])})
                    for more, mirror in enumerate(mirrors)
                )
            )
            _, found = await mirrors[0].lists()
            assert read_keys(found["a"]) == {str(version + 1)}


async def test_many_fields_are_written_and_deleted(store_server: EmbeddedServer) -> None:
    async with store_at(store_server.address) as store:
        await store.call("FLUSHALL")
        mirror = Mirror(store, inbound="acapy_inbound")
        owners = {f"k{i}": "a" for i in range(3000)}
        assert await mirror.write(OWNERS, 1, owners)
        assert await mirror.owners("0", most=10_000) == ("0", owners)
        assert await mirror.write(OWNERS, 1, {"k0": "b"}, list(owners)[1:])
        assert await mirror.owners("0", most=10_000) == ("0", {"k0": "b"})


async def test_pushing_again_pushes_nothing_twice_and_keeps_the_order(
    store_server: EmbeddedServer,
) -> None:
    async with store_at(store_server.address) as store:
        await store.call("FLUSHALL")
        mirror = Mirror(store, inbound="acapy_inbound")
        items = [(number, message(number)) for number in (3, 5, 9)]
        assert await mirror.push("k", items[:2]) == 5
        assert await mirror.push("k", items) == 9
        assert await mirror.push("k", items[:1]) == 9
        found = await store.call("LRANGE", "acapy_inbound_k", 0, -1)
        assert found == [each for _, each in items]


async def test_a_look_tells_what_is_gone_also_behind_what_others_pushed(
    store_server: EmbeddedServer,
) -> None:
    async with store_at(store_server.address) as store:
        await store.call("FLUSHALL")
        mirror = Mirror(store, inbound="acapy_inbound")

        async def look() -> tuple[int, int, int]:
            found = await mirror.look("k")
            return found.length, found.pushed, found.gone

        assert await look() == (0, 0, 0)
        await store.call("RPUSH", "acapy_inbound_k", '{"payload":""}')
        await mirror.push("k", [(number, message(number)) for number in (3, 5)])
        assert await look() == (3, 5, 2)
        await store.call("LPOP", "acapy_inbound_k", 2)
        assert await look() == (1, 5, 4)
        await store.call("LPOP", "acapy_inbound_k")
        assert await look() == (0, 5, 5)
        await store.call("RPUSH", "acapy_inbound_k", *(['{"payload":""}'] * 101))
        assert await look() == (101, 5, 0), "behind so many nobody knows"


@pytest.mark.parametrize("key", ["did:key:z6Mk#z6Mk", "a,b", "a_b", "with space", "}", "ü"])
def test_a_key_and_what_lies_beside_its_list_share_a_slot(key: str) -> None:
    mirror = Mirror(None, inbound="acapy_inbound")  # type: ignore[arg-type]
    assert mirror.can_have(key) == ("}" not in key)


@pytest.mark.parametrize("written", [b"", b"W10", b"\xff", b"e30=", b"WzFd", b"not base64 !"])
def test_a_list_that_cannot_be_read_is_no_list(written: bytes) -> None:
    assert read_keys(written) is None


def test_lists_are_written_as_the_plugin_reads_them() -> None:
    assert write_keys([]) == b"W10="
    assert read_keys(write_keys(["b", "a,c"])) == {"a,c", "b"}
    assert read_keys(b"WyJhIiwgIiIsICJcdTAwMDAiXQ==") == {"a"}, (
        "what no pool could have is left out"
    )


def test_what_others_did_is_told_from_three_maps() -> None:
    base = {"kept": "a", "moved": "a", "ours": "a", "both": "a", "forgotten": "a"}
    ours = {"kept": "a", "moved": "a", "ours": "b", "both": "b"}
    theirs = {**base, "moved": "b", "both": "c", "new": "c", "odd": "unknown"}
    found = adoptions(base, ours, theirs, {"a", "b", "c"})
    assert found == {"b": ["moved"], "c": ["new"], "": ["odd"]}


def test_without_memory_a_difference_counts_only_where_ours_was_the_last_that_was_written() -> None:
    ours, theirs = {"k": "a"}, {"k": "b", "new": "b"}
    told = base_of(None, ours, theirs, ours_was_written=True)
    assert adoptions(told, ours, theirs, {"a", "b"}) == {"b": ["k", "new"]}
    told = base_of(None, ours, theirs, ours_was_written=False)
    assert adoptions(told, ours, theirs, {"a", "b"}) == {"b": ["new"]}
