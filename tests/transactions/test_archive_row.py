"""The row of the archive: the whole hash, and what it can be found by."""

from __future__ import annotations

import pytest

from waystation.archive import join_hash
from waystation.transactions.archive_row import row_of
from waystation.transactions.record import Frame, TransactionState, encode

ID = "tx-0000" + "a" * 36
HEAD = b"1700 sleeping 7 2 0 - master in child shop - 9000 - 0 - remove"
ENDED = b"1800 complete 8 2 0 - master in refund shop failed 0 - 0 - ttl"


def packed(**fields: object) -> bytes:
    frames = [
        Frame("refund", "v1", "master", 1, b"{}"),
        Frame("child", "v2", "master", 2, b"[1]", 0, "2"),
    ]
    known: dict[str, object] = {"type": "refund", "external_id": "r-1", "frames": frames}
    known |= {"started_ms": 1600, "deadline_ms": 99}
    return encode(TransactionState(**{**known, **fields}))  # type: ignore[arg-type]


def test_it_has_every_field_byte_for_byte_and_can_be_found_by_all_of_them() -> None:
    fields = {b"head": HEAD, b"state": packed(), b"externalId": b"r-1", b"\xff": b"\x00\xfe"}
    row = row_of(ID, fields)
    assert join_hash(row.packed, row.fields) == fields
    assert (row.id, row.owner, row.external_id, row.pipeline) == (ID, "shop", "r-1", "child")
    assert (row.status, row.step, row.version) == ("sleeping", "2.3", 7)
    assert (row.wake_ms, row.deadline_ms, row.started_ms) == (9000, 99, 1600)
    assert (row.updated_ms, row.completed_ms) == (1700, 0)


def test_one_that_has_ended_is_found_by_its_status() -> None:
    row = row_of(ID, {b"head": ENDED, b"state": packed(frames=[])})
    assert (row.status, row.step, row.external_id) == ("failed", "", "")
    assert (row.updated_ms, row.completed_ms) == (1800, 1800)


@pytest.mark.parametrize(
    "state",
    [
        *(b"", b"\xc1", b"\x93\x63\x01\x02", b"text"),
        packed(frames=[Frame("p", "v", "g", 0, b"", 0, "here")]).replace(
            b"here", b"\xff\xfe\xfd\xfc"
        ),
        b"\x9a\x01" + b"\x91" * 100_000,
    ],
    ids=range(6),
)
def test_a_state_that_cannot_be_read_is_kept_all_the_same(state: bytes) -> None:
    row = row_of(ID, {b"head": HEAD, b"state": state})
    assert (row.packed, row.version, row.step, row.started_ms) == (state, 7, "", 0)


def test_a_state_of_a_later_release_that_has_more_is_read_as_far_as_it_is_known() -> None:
    later = packed()
    assert later[0] == 0xDC, "an array of 16 bits"
    longer = later[:2] + bytes([later[2] + 1]) + later[3:] + b"\x07"
    assert row_of(ID, {b"head": HEAD, b"state": longer}).step == "2.3"


@pytest.mark.parametrize(
    "fields",
    [
        {b"head": b"1 2 3", b"state": b""},
        {b"head": HEAD.replace(b" 7 ", b" seven "), b"state": b""},
        {b"head": HEAD.replace(b" 7 2 ", b" 7 two "), b"state": b""},
        {b"head": HEAD.replace(b" master ", b"  "), b"state": b""},
        {b"state": b""},
        {b"head": HEAD},
    ],
)
def test_what_is_no_transaction_is_refused(fields: dict[bytes, bytes]) -> None:
    with pytest.raises(ValueError, match=r"."):
        row_of(ID, fields)


def test_what_is_no_text_is_left_for_the_archive_to_refuse() -> None:
    row = row_of(ID, {b"head": HEAD.replace(b"shop", b"sh\xffp"), b"state": b""})
    assert row.owner == "sh\udcffp"
