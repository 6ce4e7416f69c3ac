"""Decoding of packed envelopes: rows with the same bytes, and malformed rows for other entries."""

from __future__ import annotations

from datetime import UTC, datetime

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.pandas.types import to_arrow_schema

from waystation.history.decoders.messages import MESSAGE_SCHEMA, gap_batch, message_batch
from waystation.history.decoders.partitions import TopicPlace, topic_place
from waystation.history.sources.topics import MESSAGE_COLUMNS
from waystation.logs.protocol import LogBatch
from waystation.messages.envelope import Envelope, pack

PLACE = TopicPlace("default", "orders", 2, 3)

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
some_envelopes = st.lists(
    st.builds(
        Envelope,
        id=texts,
        project=st.just("default"),
        data=st.binary(max_size=40),
        group=st.none() | texts,
        headers=st.lists(st.tuples(texts, texts), max_size=3).map(tuple),
        not_before_ms=st.sampled_from([0, 1, 1_800_000_000_123]),
        cause=st.none() | texts,
        traceparent=st.none() | texts,
    ),
    min_size=1,
    max_size=30,
)


@settings(deadline=None)
@given(messages=some_envelopes)
def test_every_field_of_every_message_is_kept(messages: list[Envelope]) -> None:
    payloads = [pack(message) for message in messages]
    times = [1_700_000_000_000 + number for number in range(len(messages))]

    rows = message_batch(PLACE, LogBatch(40, 40 + len(times), times, payloads)).to_pylist()

    for number, (row, message) in enumerate(zip(rows, messages, strict=True)):
        assert row["position"] == f"default/orders/2/3/{40 + number}"
        assert (row["project"], row["topic"]) == ("default", "orders")
        assert (row["storage"], row["partition"], row["offset"]) == (2, 3, 40 + number)
        assert row["time"] == datetime.fromtimestamp(times[number] / 1000, UTC)
        assert (row["id"], row["group"]) == (message.id, message.group)
        assert (row["payload"], row["size"]) == (message.data, len(message.data))
        headers = tuple((header["name"], header["value"]) for header in row["headers"])
        assert headers == message.headers
        due = message.not_before_ms
        assert row["not_before"] == (datetime.fromtimestamp(due / 1000, UTC) if due else None)
        assert (row["cause"], row["traceparent"]) == (message.cause, message.traceparent)
        assert (row["malformed"], row["gap"]) == (False, 0)


@pytest.mark.parametrize(
    "bad",
    [
        b"",
        b"no msgpack",
        b"\x91\x01",
        pack(Envelope(id="x", project="default", data=b"1"))[:-1],
        # Envelopes of a later release: one field more, and another format
        b"\x98\x02\xa1x\xc4\x011\xc0\x90\x00\xc0\xc0",
        b"\x99\x01\xa1x\xc4\x011\xc0\x90\x00\xc0\xc0\xc0",
        # Invalid headers
        b"\x98\x01\xa1x\xc4\x011\xc0\x01\x00\xc0\xc0",
        # An id that is not UTF-8
        b"\x98\x01\xa1\xff\xc4\x011\xc0\x90\x00\xc0\xc0",
    ],
)
def test_what_is_no_envelope_is_kept_as_it_is_and_spoils_nothing_else(bad: bytes) -> None:
    good = pack(Envelope(id="good", project="default", data=b"{}"))

    rows = message_batch(PLACE, LogBatch(0, 3, [1, 1, 1], [good, bad, good])).to_pylist()

    assert [row["malformed"] for row in rows] == [False, True, False]
    assert [row["id"] for row in rows] == ["good", None, "good"]
    assert rows[1]["payload"] == bad
    assert [row["offset"] for row in rows] == [0, 1, 2]


def test_a_gap_is_one_row_that_counts() -> None:
    (row,) = gap_batch(PLACE, 5, 12).to_pylist()
    assert (row["offset"], row["gap"], row["id"], row["payload"]) == (5, 7, None, None)
    assert row["position"] == "default/orders/2/3/5"


def test_arrow_and_spark_have_the_same_columns() -> None:
    # Spark refuses a batch whose schema differs in the least
    assert to_arrow_schema(MESSAGE_COLUMNS, timezone="UTC").equals(MESSAGE_SCHEMA)
    assert isinstance(gap_batch(PLACE, 0, 1), pa.RecordBatch)


def test_a_place_is_told_from_the_name_of_its_log() -> None:
    assert topic_place("t.shop.orders.7", 3) == TopicPlace("shop", "orders", 7, 3)
    for other in ("tx", "s.shop.orders.7", "t.shop.orders", "t.shop.orders.x", "t.a.b.c.1"):
        assert topic_place(other, 0) is None
