"""The verbs of topics in both clients, against a real station."""

from __future__ import annotations

import asyncio
import gzip
import inspect
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from tests.helpers.store_faults import Fate, proxy_to
from tests.helpers.waiting import eventually_sync
from waystation import AsyncWaystation, Waystation, errors
from waystation.client import NewMessage, Receipt
from waystation.client.async_producer import AsyncProducer
from waystation.client.async_topics import AsyncTopics
from waystation.client.messages import Answer, decode_answer, error_for
from waystation.client.sync_producer import Producer
from waystation.client.sync_topics import Topics
from waystation.client.topics import ReceivedTopic, VersionedOptions
from waystation.store.address import Address
from waystation.testing import Station


class Zipped:
    """A codec that compresses."""

    name = "gzip"
    encode = staticmethod(gzip.compress)
    decode = staticmethod(gzip.decompress)


class Spaced:
    """A codec whose results look like JSON with blanks around it."""

    name = "spaced"

    def encode(self, data: bytes) -> bytes:
        return b" " + data + b"\n"

    def decode(self, data: bytes) -> bytes:
        assert (data[:1], data[-1:]) == (b" ", b"\n"), data
        return data[1:-1]


@pytest.fixture
def client(station: Station) -> Iterator[Waystation]:
    with Waystation(station.url) as opened:
        yield opened


def test_what_is_produced_is_found_again_with_all_that_belongs_to_it(client: Waystation) -> None:
    client.topics.create("orders")
    tomorrow = datetime.now(UTC).replace(microsecond=0) + timedelta(days=1)

    receipt = client.topics.produce(
        "orders",
        {"total": 12.5},
        id="order-17",
        group="kundin-ü",
        headers=[("X-Tenant", "a, b"), ("x-tenant", "c")],
        not_before=tomorrow,
        cause="click-5",
        traceparent="00-" + "a" * 32 + "-" + "b" * 16 + "-01",
    )

    (message,) = client.topics.messages("orders", group="kundin-ü")
    assert (message.id, message.group, message.cause) == ("order-17", "kundin-ü", "click-5")
    assert message.content == {"total": 12.5}
    assert message.payload == b'{"total":12.5}'
    assert message.content_type == "application/json"
    assert message.headers == [("x-tenant", "a, b"), ("x-tenant", "c")]
    assert message.not_before_ms == tomorrow.timestamp() * 1000
    assert message.traceparent == "00-" + "a" * 32 + "-" + "b" * 16 + "-01"
    place = (receipt.storage, receipt.partition, receipt.offset, receipt.time_ms)
    assert place == (message.storage, message.partition, message.offset, message.time_ms)
    assert (receipt.id, receipt.duplicate, receipt.durability) == ("order-17", False, "memory")


@pytest.mark.parametrize(
    ("data", "kind", "content"),
    [
        (b"\xff\x00", "", b"\xff\x00"),
        (b"", "", b""),
        (bytearray(b"abc"), "", b"abc"),
        ("grün", "text/plain; charset=utf-8", "grün"),
        ("", "text/plain; charset=utf-8", ""),
        (["a", 1, None], "application/json", ["a", 1, None]),
        (None, "application/json", None),
        (msgspec.Raw(b"12345678901234567890"), "application/json", 12345678901234567890),
    ],
    ids=["bytes", "no bytes", "bytearray", "text", "no text", "list", "null", "raw"],
)
def test_a_payload_is_what_its_python_type_says(
    client: Waystation, data: object, kind: str, content: object
) -> None:
    client.topics.create("orders")

    client.topics.produce("orders", data, id="m")

    (message,) = client.topics.messages("orders", id="m")
    assert (message.content_type, message.content) == (kind, content)


def test_a_content_type_of_ones_own_takes_the_place_of_the_usual_one(client: Waystation) -> None:
    client.topics.create("orders")
    client.topics.produce_many(
        "orders",
        [
            NewMessage(b"{}", id="a", content_type="application/json"),
            NewMessage({"a": 1}, id="b", content_type="application/vnd.acme+json"),
            NewMessage("<p>", id="c", headers={"Content-Type": "text/html"}),
            NewMessage("plain", id="d", content_type=""),
        ],
    )

    found = [next(iter(client.topics.messages("orders", id=each))) for each in "abcd"]

    assert [each.content_type for each in found] == [
        *("application/json", "application/vnd.acme+json", "text/html", "")
    ]
    assert [each.content for each in found] == [{}, {"a": 1}, b"<p>", b"plain"]


def test_a_codec_makes_payloads_opaque_and_whoever_reads_is_told(client: Waystation) -> None:
    client.topics.create("orders")
    codec = Zipped()

    client.topics.produce("orders", {"secret": "x" * 500}, id="m", group="g", codec=codec)

    (sealed,) = client.topics.messages("orders", group="g")
    (opened,) = client.topics.messages("orders", group="g", codec=codec)
    assert b"secret" not in sealed.payload
    assert len(sealed.payload) < 100
    assert sealed.headers == [("content-encoding", "gzip")]
    assert sealed.content_type == "application/json"
    assert opened.content == {"secret": "x" * 500}


def test_a_codec_leaves_alone_what_is_not_its_own_and_a_bad_message_spoils_no_other(
    client: Waystation,
) -> None:
    client.topics.create("orders")
    client.topics.produce("orders", "plain", group="g")
    client.topics.produce("orders", b"junk", group="g", headers={"content-encoding": "gzip"})
    client.topics.produce("orders", b"other", group="g", headers={"content-encoding": "br"})
    client.topics.produce("orders", 7, group="g", codec=Zipped())

    plain, junk, other, good = client.topics.messages("orders", group="g", codec=Zipped())

    assert (plain.content, other.payload, good.content) == ("plain", b"other", 7)
    assert junk.stored == b"junk"
    with pytest.raises(gzip.BadGzipFile):
        _ = junk.payload


def test_what_a_codec_made_comes_back_byte_for_byte_even_if_it_looks_like_json(
    client: Waystation,
) -> None:
    client.topics.create("orders")

    client.topics.produce("orders", 7, id="m", codec=Spaced())

    (message,) = client.topics.messages("orders", id="m", codec=Spaced())
    assert message.stored == b" 7\n"
    assert message.content == 7


def test_many_messages_are_produced_in_order_whatever_their_number(client: Waystation) -> None:
    client.topics.create("orders", partitions=2)
    messages = [NewMessage(number, group="g") for number in range(1234)]
    messages.insert(700, NewMessage(b"x" * 3_000_000, group="g"))

    results = client.topics.produce_many("orders", messages)

    assert [each.offset for each in results if isinstance(each, Receipt)] == list(range(1235))
    found = [each.content for each in client.topics.messages("orders", group="g")]
    assert found == [*range(700), b"x" * 3_000_000, *range(700, 1234)]
    assert client.topics.produce_many("orders", []) == []


def test_of_many_messages_a_bad_one_is_told_and_the_others_are_produced(
    client: Waystation,
) -> None:
    client.topics.create("orders", json_schema={"type": "integer"}, grouped=True)
    messages = [
        NewMessage(1, group="g"),
        NewMessage("text", group="g"),
        NewMessage(2),
        NewMessage(3, group="g", id="x" * 101),
        NewMessage(4, group="g"),
    ]

    results = client.topics.produce_many("orders", messages)

    assert [getattr(each, "code", "produced") for each in results] == [
        "produced",
        "topic.schema-mismatch",
        "topic.group-required",
        "input.invalid",
        "produced",
    ]
    assert [each.content for each in client.topics.messages("orders", group="g")] == [1, 4]


def test_a_bad_message_that_goes_alone_is_told_and_the_others_are_produced(
    client: Waystation,
) -> None:
    client.topics.create("orders", json_schema={"type": ["integer", "string"], "maxLength": 9})
    messages = [
        NewMessage(1, group="g"),
        # Too large to share a request; the second is not even read by the station.
        NewMessage("x" * 1_500_000, group="g"),
        NewMessage(2, group="g"),
        NewMessage("x" * 9_000_000, group="g"),
        NewMessage(3, group="g"),
        NewMessage("y" * 20, group="g"),
    ]

    results = client.topics.produce_many("orders", messages)

    assert [getattr(each, "code", "produced") for each in results] == [
        *("produced", "topic.schema-mismatch", "produced", "input.too-large", "produced"),
        "topic.schema-mismatch",
    ]
    with pytest.raises(errors.SchemaMismatchError):
        client.topics.produce("orders", "z" * 20)
    assert [each.content for each in client.topics.messages("orders", group="g")] == [1, 2, 3]


@pytest.mark.parametrize("letter", ['"', "\n", "\x01", "ü"])
def test_text_of_any_letters_is_produced_up_to_the_size_of_a_message(
    client: Waystation, letter: str
) -> None:
    client.topics.create("orders")
    text = letter * (5_000_000 // len(letter.encode()))

    results = client.topics.produce_many(
        "orders", [NewMessage(text, group="g"), NewMessage(letter, group="g")]
    )

    assert [getattr(each, "code", "produced") for each in results] == ["produced"] * 2
    large, small = client.topics.messages("orders", group="g")
    assert large.content == text
    assert small.content == letter
    assert {each.content_type for each in (large, small)} == {"text/plain; charset=utf-8"}


def test_text_that_is_sent_in_another_form_keeps_a_content_type_of_its_own(
    client: Waystation,
) -> None:
    client.topics.create("orders")
    quotes = '"' * 100

    client.topics.produce("orders", quotes, id="a", content_type="text/csv")
    client.topics.produce("orders", quotes, id="b", headers={"Content-Type": "text/html"})
    client.topics.produce("orders", quotes, id="c", content_type="")

    found = [next(iter(client.topics.messages("orders", id=each))) for each in "abc"]
    assert [each.content_type for each in found] == ["text/csv", "text/html", ""]
    assert {each.payload for each in found} == {quotes.encode()}


def test_text_that_is_no_unicode_is_told_before_anything_is_sent(client: Waystation) -> None:
    with pytest.raises(errors.InvalidInputError, match="not Unicode"):
        client.topics.produce("orders", "\ud800")


def test_a_repetition_is_known_where_the_topic_remembers_ids(client: Waystation) -> None:
    client.topics.create("orders", dedup_seconds=60)

    first = client.topics.produce("orders", 1, id="a", group="g")
    again = client.topics.produce("orders", 2, id="a", group="g")

    assert (first.duplicate, again.duplicate) == (False, True)
    assert first.offset == again.offset
    assert [each.content for each in client.topics.messages("orders", group="g")] == [1]


async def test_a_produce_whose_reply_was_lost_is_repeated_and_doubles_nothing_with_deduplication(
    station: Station,
) -> None:
    port = int(station.url.rpartition(":")[2])
    async with (
        proxy_to(Address(host="127.0.0.1", port=port)) as proxy,
        AsyncWaystation(f"http://127.0.0.1:{proxy.address.port}") as client,
        AsyncWaystation(station.url) as direct,
    ):
        await direct.topics.create("orders", dedup_seconds=60)
        await proxy.set_fates(replies=Fate.CUT)
        messages = [NewMessage(number, group="g") for number in range(3)]
        producing = asyncio.ensure_future(client.topics.produce_many("orders", messages))
        await asyncio.wait_for(proxy.met.wait(), timeout=5)
        await proxy.set_fates()

        results = await asyncio.wait_for(producing, timeout=10)

        assert [getattr(each, "duplicate", None) for each in results] == [True] * 3
        found = [each.content async for each in direct.topics.messages("orders", group="g")]
        assert found == [0, 1, 2]


async def test_patience_has_an_end_and_nothing_is_sent_after_what_was_given_up(
    station: Station, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("waystation.client.parcels.BATCH_MESSAGES_MAX", 2)
    port = int(station.url.rpartition(":")[2])
    async with (
        proxy_to(Address(host="127.0.0.1", port=port)) as proxy,
        AsyncWaystation(f"http://127.0.0.1:{proxy.address.port}") as client,
        AsyncWaystation(station.url) as direct,
    ):
        await direct.topics.create("orders")
        await proxy.set_fates(requests=Fate.CUT)
        messages = [NewMessage(number, group="g") for number in range(6)]

        results = await client.topics.produce_many("orders", messages, patience=0)

        assert proxy.connections == 1
        assert [type(each) for each in results] == [errors.StationUnreachableError] * 6
        assert [each async for each in direct.topics.messages("orders", group="g")] == []


def test_over_the_limit_a_produce_waits_as_long_as_its_patience_lasts(client: Waystation) -> None:
    client.topics.create("orders", rate={"mode": "enforced", "qps": 1})
    client.topics.produce_many("orders", [NewMessage(1), NewMessage(2)])

    with pytest.raises(errors.RateLimitedError) as raised:
        client.topics.produce("orders", 3, patience=0)
    assert raised.value.retry_after_s >= 1
    assert client.topics.produce("orders", 4, patience=20).id


def test_a_topic_is_made_changed_grown_blocked_deleted_and_brought_back(
    client: Waystation,
) -> None:
    topics = client.topics
    made = topics.create("orders", partitions=2, grouped=True)
    assert (made.name, made.state, made.produce_pointer) == ("orders", "active", 0)
    assert made.warning is None
    assert [each.partitions for each in made.storage] == [2]

    changed = topics.change("orders", dedup_seconds=60, version=made.version)
    assert changed.options.dedup_seconds == 60
    assert changed.options.grouped, "what is not named stays"
    with pytest.raises(errors.ConflictError):
        topics.change("orders", dedup_seconds=61, version=made.version)

    grown = topics.add_storage_topic("orders", 10, version=changed.version)
    assert [(each.partitions, each.factor) for each in grown.storage] == [(2, 1), (10, 5)]
    assert grown.warning is not None, "10 is not advised"
    with pytest.raises(errors.ConflictError):
        topics.add_storage_topic("orders", 10, version=changed.version)
    switched = topics.switch_produce("orders", version=grown.version)
    assert switched.produce_pointer == 1
    with pytest.raises(errors.ConflictError):
        topics.switch_produce("orders", version=grown.version)
    assert topics.switch_produce("orders").produce_pointer == 1, "the last one stays"
    assert topics.produce("orders", 1, group="g").storage == 1

    assert topics.block("orders").state == "blocked"
    with pytest.raises(errors.TopicBlockedError):
        topics.produce("orders", 1, group="g")
    assert topics.unblock("orders").state == "active"

    topics.delete("orders")
    assert [each.name for each in topics.list()] == []
    assert [each.name for each in topics.list(deleted=True)] == ["orders"]
    with pytest.raises(errors.TopicNotFoundError):
        topics.get("orders")
    with pytest.raises(errors.ConflictError):
        topics.create("orders")
    assert topics.restore("orders").state == "active"
    assert [each.content for each in topics.messages("orders", group="g")] == [1]

    topics.delete("orders")
    topics.purge("orders")
    assert topics.create("orders").storage[0].partitions == 4
    assert list(topics.messages("orders", group="g")) == []


def test_messages_are_found_by_place_time_group_and_id_page_by_page(client: Waystation) -> None:
    topics = client.topics
    topics.create("orders", partitions=1)
    topics.produce_many("orders", [NewMessage(n, id=f"m-{n}", group=f"g{n % 2}") for n in range(9)])

    def contents(**wish: object) -> list[int]:
        return [each.content for each in topics.messages("orders", **wish)]  # type: ignore[arg-type]

    assert contents(partition=0) == list(range(9))
    assert contents(partition=0, offset=6) == [6, 7, 8]
    assert contents(partition=0, since=datetime.now(UTC) - timedelta(hours=1)) == list(range(9))
    # Far ahead: other tests have moved the time of this station.
    assert contents(partition=0, since=datetime.now(UTC) + timedelta(days=365)) == []
    assert contents(group="g1") == [1, 3, 5, 7]
    assert contents(id="m-4") == [4]
    first = topics.page("orders", partition=0, limit=5)
    second = topics.page("orders", partition=0, limit=5, cursor=first.cursor)
    assert [each.content for each in (*first.messages, *second.messages)] == list(range(9))
    assert (first.ended, second.ended) == (False, True)
    topics.produce("orders", 9)
    third = topics.page("orders", partition=0, cursor=second.cursor)
    assert [each.content for each in third.messages] == [9], "the end is where new ones follow"
    with pytest.raises(errors.OffsetOutOfRangeError) as raised:
        topics.page("orders", partition=0, offset=11)
    assert (raised.value.first, raised.value.end) == (0, 10)


async def test_messages_with_foreign_entry_return_its_location_and_reason(
    station: Station, client: Waystation
) -> None:
    client.topics.create("orders", partitions=1)
    client.topics.produce("orders", 1, id="m-0", group="g")
    logs = station._running().node.logs
    (log,) = [each for each in station._await(logs.names()) if each.startswith("t.default.orders.")]
    station._await(logs.append(log, 0, [b'{"id":"x"}']))
    client.topics.produce("orders", 2, id="m-2", group="g")

    page = client.topics.page("orders", partition=0)
    async with AsyncWaystation(station.url) as opened:
        found = [each async for each in opened.topics.messages("orders", partition=0)]

    assert page.messages == found
    assert [each.offset for each in found] == [0, 1, 2]
    assert [bool(each.unreadable) for each in found] == [False, True, False]
    foreign = found[1]
    assert foreign.unreadable.startswith("not an envelope")
    assert (foreign.id, foreign.group, foreign.payload) == ("", None, b'{"id":"x"}')
    assert [each.content for each in client.topics.messages("orders", group="g")] == [1, 2]


def test_where_and_state_tell_how_a_topic_stands(client: Waystation) -> None:
    client.topics.create("orders", partitions=2)
    client.topics.add_storage_topic("orders", 10)
    client.topics.produce("orders", b"12345", group="g")

    where = client.topics.where("orders", "g", shards=2)
    bare = client.topics.where("orders", "g")
    standing = client.topics.state("orders")

    assert (where.group, where.consistent) == ("g", True)
    assert [each.current for each in where.positions] == [True, False]
    assert len({each.shard for each in where.positions}) == 1
    assert {each.shard for each in bare.positions} == {None}
    assert (standing.messages, len(standing.partitions)) == (1, 12)
    (held,) = [each for each in standing.partitions if each.end]
    assert (held.storage, held.partition) == (0, where.positions[0].partition)


def test_topic_of_newer_server_keeps_known_options_and_ignores_others() -> None:
    options = {"grouped": True, "compression": "zstd", "rate": {"mode": "shadow", "burst": 2}}
    fields = {"name": "orders", "version": 3, "state": "active", "options": options}
    fields |= {"storage": [], "produce_pointer": 0, "created_ms": 1, "tier": "hot"}
    answer = Answer(200, msgspec.json.encode(fields))

    topic = decode_answer(answer, ReceivedTopic)
    assert (topic.options.grouped, topic.options.rate.mode) == (True, "shadow")
    # A change sends all options back, also those that this client does not know.
    assert decode_answer(answer, VersionedOptions).options == options


async def test_the_asynchronous_client_does_the_same(station: Station) -> None:
    async with AsyncWaystation(station.url) as client:
        await client.topics.create("orders", partitions=2)
        receipt = await client.topics.produce("orders", "one", group="g", codec=Zipped())
        found = [m async for m in client.topics.messages("orders", group="g", codec=Zipped())]
        listed = [each.name async for each in client.topics.list()]

        assert [(each.offset, each.content) for each in found] == [(receipt.offset, "one")]
        assert listed == ["orders"]
        assert (await client.topics.state("orders")).messages == 1


@pytest.mark.parametrize(
    ("asynchronous", "ordinary"), [(AsyncTopics, Topics), (AsyncProducer, Producer)]
)
def test_both_clients_have_the_same_verbs_with_the_same_parameters(
    asynchronous: type, ordinary: type
) -> None:
    def verbs(kind: type) -> dict[str, list[str]]:
        return {
            name.replace("aclose", "close").replace("__a", "__"): list(
                inspect.signature(member).parameters
            )
            for name, member in inspect.getmembers(kind, inspect.isfunction)
        }

    assert verbs(asynchronous) == verbs(ordinary)


@pytest.mark.parametrize(
    ("verb", "kind"),
    [
        (lambda t: t.produce("nowhere", 1), errors.TopicNotFoundError),
        (lambda t: t.produce("Bad Name", 1), errors.InvalidInputError),
        (lambda t: t.create("{a}*"), errors.InvalidInputError),
        (lambda t: t.create("odd", partitions=0), errors.InvalidInputError),
        (lambda t: t.create("odd", json_schema={"type": 7}), errors.SchemaInvalidError),
        (lambda t: t.produce("orders", b"x" * 6_000_000), errors.TooLargeError),
        (lambda t: t.produce("orders", 1, id="\ud800"), errors.InvalidInputError),
        (lambda t: t.produce("orders", object()), errors.InvalidInputError),
        (
            lambda t: t.produce("orders", msgspec.Raw(b'1},{"id":"forged","data":2')),
            errors.InvalidInputError,
        ),
        (lambda t: t.produce("orders", 1, headers={"cookie": "a"}), errors.InvalidInputError),
        (lambda t: t.page("orders", partition=9), errors.LogNotFoundError),
        (lambda t: t.page("orders", partition=0, cursor="zz"), errors.InvalidInputError),
        (lambda t: t.restore("orders"), errors.ConflictError),
    ],
)
def test_bad_input_is_an_error_of_its_own_class(
    client: Waystation, verb: object, kind: type[errors.WaystationError]
) -> None:
    client.topics.create("orders")

    with pytest.raises(kind) as raised:
        verb(client.topics)  # type: ignore[operator]

    assert raised.value.code == kind.code
    assert client.topics.state("orders").messages == 0


def test_every_error_that_a_station_can_tell_becomes_its_class() -> None:
    kinds = [errors.WaystationError]
    while kinds:
        kind = kinds.pop()
        kinds += kind.__subclasses__()
        body = msgspec.json.encode({"code": kind.code, "detail": "So it is."})
        raised = error_for(Answer(400, body))
        assert (raised.code, str(raised)) == (kind.code, "So it is.")


@pytest.mark.slow
def test_topic_with_default_options_keeps_settled_messages_for_seven_days() -> None:
    with Station() as station, Waystation(station.url) as ws:
        options: dict[str, dict[str, Any]] = {
            "settled": {},
            "unsettled": {},
            "unlimited": {"max_age_seconds": None, "max_bytes": None},
        }
        for name, chosen in options.items():
            ws.topics.create(name, partitions=1, **chosen)
            ws.subscriptions.create(name, topic=name, endpoint="channel:c")
            if name == "unsettled":
                ws.subscriptions.pause(name)
            ws.topics.produce(name, {"n": 1}, id=f"{name}-1")
        for name in ("settled", "unlimited"):
            eventually_sync(lambda name=name: ws.subscriptions.shards(name).lag == 0)  # type: ignore[misc]
        station.advance(days=6)
        counts = {name: ws.topics.state(name).messages for name in options}
        assert counts == {"settled": 1, "unsettled": 1, "unlimited": 1}
        station.advance(days=2)
        eventually_sync(lambda: ws.topics.state("settled").messages == 0)
        assert ws.topics.state("unsettled").messages == 1
        assert ws.topics.state("unlimited").messages == 1
