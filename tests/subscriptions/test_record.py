"""Records, positions and entries of the record log: what is written is read, nothing else is."""

from __future__ import annotations

import msgspec
import pytest

from waystation.subscriptions import log_entry
from waystation.subscriptions.held import Head
from waystation.subscriptions.names import Place
from waystation.subscriptions.positions import (
    Member,
    Position,
    dead_member,
    parse_at,
    parse_member,
    retry_member,
)
from waystation.subscriptions.record import RetryRecord, group_of, pack, unpack

FULL = RetryRecord(
    group="ü }{\n\0",
    position=Position(2, 3, 4, 2**53 - 1),
    envelope=b"\x00\xff",
    attempts=6,
    first_failure_ms=1,
    last_failure_ms=2,
    failure="503",
    cause="the endpoint answered 503",
    excerpt=b"sorry\xff",
    policy="skip",
    due_ms=7,
)


def test_a_record_comes_back_as_it_was() -> None:
    assert unpack(pack(FULL)) == FULL
    assert group_of(pack(FULL)) == FULL.group


def test_of_a_reply_only_the_beginning_is_kept() -> None:
    long = msgspec.structs.replace(FULL, excerpt=b"x" * 5000)
    assert unpack(pack(long)).excerpt == b"x" * 1024


@pytest.mark.parametrize("bad", [b"", b"\xc0", b"\x91\x01", b"\x92\x01\x02", pack(FULL)[:-1]])
def test_what_is_no_record_is_refused(bad: bytes) -> None:
    with pytest.raises(ValueError, match="not a record"):
        unpack(bad)


def test_a_record_of_a_newer_release_is_refused_by_its_number() -> None:
    newer = msgspec.msgpack.encode([2, "g", {"all": "else"}])
    for read in (unpack, group_of):
        with pytest.raises(ValueError, match="format 2"):
            read(newer)


def test_positions_are_in_order_of_incarnation_storage_partition_and_offset() -> None:
    ordered = [
        Position(1, 0, 0, 9),
        Position(1, 0, 1, 0),
        Position(1, 1, 0, 0),
        Position(2, 0, 0, 0),
    ]
    mixed = [ordered[each] for each in (2, 0, 3, 1)]
    assert sorted(mixed) == ordered
    assert ordered[1].at == "0.1"
    assert parse_at("0.1") == (0, 1)


def test_members_are_read_as_they_are_written() -> None:
    assert parse_member(Position(1, 3, 4, 5).member) == Member("m", 5, at="3.4")
    assert parse_member(retry_member(7, 2)) == Member("r", 7, 2)
    assert parse_member(dead_member(7, 0)) == Member("d", 7)
    assert parse_member("f9") == Member("f", 9)
    assert (Head("r7.2", "g", b"").tries, Head("f9", "g", b"").follow) == (2, True)


@pytest.mark.parametrize("bad", ["", "m1.2", "r1", "d1.2.3", "f1.0", "x1.0", "rx.0", "f"])
def test_what_is_no_member_is_refused(bad: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        parse_member(bad)


def test_all_keys_of_a_shard_share_its_tag_and_its_log_is_a_partition_of_the_generations() -> None:
    place = Place("shop", "crm", 2, 7)
    assert place.tag == "{s.shop.crm.2.7}:"
    assert place.log == "{s.shop.crm.2.7}:log"
    assert place.lease == "{s.shop.crm.2.7}:lease"
    assert place.key("groups") == "{s.shop.crm.2.7}:groups"
    assert place.definition_key == "{sub.shop.crm}:definition"
    assert place.record_log == "s.shop.crm.2"


def test_what_is_no_entry_of_a_record_log_is_refused() -> None:
    with pytest.raises(ValueError, match="not an entry"):
        log_entry.unpack(b"\x00")
    with pytest.raises(ValueError, match="format 2"):
        log_entry.unpack(msgspec.msgpack.encode([2, "ds", []]))


def test_the_detail_of_an_attempt_comes_back_as_it_was() -> None:
    detail = log_entry.AttemptDetail(id="m-1", group="g", failure="500", begun_after=7, node="n")
    assert log_entry.unpack_attempt(log_entry.pack_detail(detail)) == detail
