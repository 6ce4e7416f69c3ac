"""Producing over HTTP: receipts, forms, refusals, limits."""

from __future__ import annotations

import json
from urllib.parse import quote

import pytest
from msgspec.structs import replace

from tests.helpers.http import ask, request_bytes, wire
from tests.helpers.server import BATCH, TopicClient, background_station, problem
from waystation import Waystation
from waystation.config import Config, HttpConfig, TopicConfig
from waystation.runtime.json_text import JSON_DEPTH_MAX

MIB = 1_048_576
ODD_NAMES = ["{a}", "}", "*", "a:b", "..", "a..b", "a\0b", "x" * 300, "A", " ", "ä", "a.b", "%2e"]


# -- One message -----------------------------------------------------------------------------


def test_a_message_gets_a_receipt_that_says_where_and_how_safe_it_is(topic: TopicClient) -> None:
    answer = topic.produce(b"hello", {"Waystation-Id": "m-1", "Waystation-Group": "g"})

    assert answer.status == 200
    receipt = answer.json()
    assert receipt["time_ms"] > 1_600_000_000_000
    where = topic.ask("GET", f"{topic.path}/where?group=g").json()["positions"]
    assert receipt == {
        "id": "m-1",
        "storage": 0,
        "partition": where[0]["partition"],
        "offset": 0,
        "time_ms": receipt["time_ms"],
        "duplicate": False,
        "durability": "memory",
    }
    assert answer.header("waystation-durability") == "memory"
    assert answer.header("ratelimit") is None


def test_without_an_id_each_message_gets_one_of_its_own(topic: TopicClient) -> None:
    ids = [topic.produce(b"x").json()["id"] for _ in range(3)]
    assert len(set(ids)) == 3
    for each in ids:
        assert [found["id"] for found in topic.found(id=each)] == [each]


def test_the_payload_is_bytes_that_nobody_changes(topic: TopicClient) -> None:
    body = b'\x00\xff{ "n": 12345678901234567890 }\r\n'
    topic.produce(body, {"Waystation-Id": "raw"})
    (found,) = topic.found(id="raw")
    assert set(found) == {"id", "base64"}
    topic.produce(
        b'{"n": 12345678901234567890}',
        {"Waystation-Id": "json", "Content-Type": "application/json"},
    )
    assert b'"data":{"n": 12345678901234567890}' in topic.browse(id="json").body


def test_produce_of_batch_with_nested_data_is_accepted_up_to_limit(topic: TopicClient) -> None:
    for depth in (JSON_DEPTH_MAX, JSON_DEPTH_MAX + 1, 1000, 100_000):
        data = b"[" * depth + b"]" * depth
        answer = topic.produce(b'{"messages":[{"data":%b}]}' % data, {"Content-Type": BATCH})

        if depth == JSON_DEPTH_MAX:
            message_id = answer.json()["results"][0]["id"]
            assert b'"data":%b' % data in topic.browse(id=message_id).body
        else:
            assert problem(answer) == (400, "input.too-deep")
            assert f"the limit is {JSON_DEPTH_MAX} levels" in answer.json()["detail"]


def test_produce_of_nested_payload_stores_its_bytes(topic: TopicClient) -> None:
    for depth in (1000, 100_000):
        data = b"[" * depth + b"]" * depth
        message_id = topic.produce(data, {"Content-Type": "application/json"}).json()["id"]

        (found,) = topic.found(id=message_id)
        assert found["text"] == data.decode()


def test_repeated_headers_and_commas_survive_in_their_order(topic: TopicClient) -> None:
    answer = topic.produce_raw(
        b"x",
        ("Waystation-Id", "headers"),
        ("X-Tag", "a, b"),
        ("X-Other", "1"),
        ("X-Tag", "c,d"),
        ("Authorization", "Basic eDp5"),
        ("Cookie", "session=secret"),
    )
    assert answer.status == 200
    (found,) = topic.found(id="headers")
    assert found["headers"] == [["x-tag", "a, b"], ["x-other", "1"], ["x-tag", "c,d"]]


def test_a_delayed_message_is_there_at_once_and_shows_until_when_it_waits(
    topic: TopicClient,
) -> None:
    topic.produce(b"later", {"Waystation-Id": "d", "Waystation-Not-Before": "2100-01-01T00:00:00Z"})
    (found,) = topic.found(id="d")
    assert found["not_before_ms"] == 4_102_444_800_000


def test_cause_and_trace_come_along(topic: TopicClient) -> None:
    trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    topic.produce(b"x", {"Waystation-Id": "t", "Waystation-Cause": "click", "Traceparent": trace})
    (found,) = topic.found(id="t")
    assert (found["cause"], found["traceparent"]) == ("click", trace)


# -- CloudEvents -----------------------------------------------------------------------------


def test_an_event_is_the_same_message_in_binary_and_in_structured_mode(topic: TopicClient) -> None:
    binary = topic.produce(
        b'{"total":1}',
        {
            "Content-Type": "application/json",
            "ce-specversion": "1.0",
            "ce-id": "binary",
            "ce-source": "/shop",
            "ce-type": "order.paid",
            "ce-partitionkey": "customer",
        },
    )
    event = {
        "specversion": "1.0",
        "id": "structured",
        "source": "/shop",
        "type": "order.paid",
        "partitionkey": "customer",
        "datacontenttype": "application/json",
        "data": {"total": 1},
    }
    structured = topic.produce(
        json.dumps(event).encode(), {"Content-Type": "application/cloudevents+json"}
    )

    assert (binary.status, structured.status) == (200, 200)
    assert binary.json()["partition"] == structured.json()["partition"]
    shown = topic.found(group="customer")
    assert [each["id"] for each in shown] == ["binary", "structured"]
    for each in shown:
        assert each["data"] == {"total": 1}
        headers = dict(each["headers"])
        assert (headers["ce-source"], headers["ce-type"]) == ("/shop", "order.paid")
    assert sorted(map(tuple, shown[0]["headers"])) == sorted(
        (name, "binary" if name == "ce-id" else value) for name, value in shown[1]["headers"]
    )


def test_a_batch_of_events_has_a_result_for_each(topic: TopicClient) -> None:
    events = [{"specversion": "1.0", "id": f"e-{n}", "source": "/s", "type": "t"} for n in range(3)]
    answer = topic.produce(
        json.dumps(events).encode(), {"Content-Type": "application/cloudevents-batch+json"}
    )
    assert [each["id"] for each in answer.json()["results"]] == ["e-0", "e-1", "e-2"]


def test_events_of_two_sources_may_have_the_same_id_and_are_both_there(open_url: str) -> None:
    client = TopicClient(open_url)
    client.create(dedup_seconds=60)
    plain = {"specversion": "1.0", "id": "1", "type": "t", "partitionkey": "g"}
    structured = {"Content-Type": "application/cloudevents+json"}

    def produce(source: str, **headers: str) -> tuple[str, bool]:
        event = json.dumps({**plain, "source": source}).encode()
        receipt = client.produce(event, {**structured, **headers}).json()
        return receipt["id"], receipt["duplicate"]

    assert produce("/till/ä") == ("1", False)
    assert produce("/web") == ("1", False)
    assert produce("/till/ä") == ("1", True)
    # The same event in another mode is the same event.
    binary = {f"ce-{name}": value for name, value in plain.items()} | {"ce-source": "/till/%c3%a4"}
    assert client.produce(b"", binary).json()["duplicate"] is True
    # A message that is no event has no source.
    own = {"Waystation-Id": "1", "Waystation-Group": "g"}
    assert client.produce(b"", own).json()["duplicate"] is False
    # Who names an event says what it is: its source does not count.
    assert produce("/till", **{"Waystation-Id": "mine"}) == ("mine", False)
    assert produce("/web", **{"Waystation-Id": "mine"}) == ("mine", True)
    assert client.state()["messages"] == 4


# -- Batches ---------------------------------------------------------------------------------


def test_a_batch_has_results_in_its_order_and_is_found_in_the_order_of_its_group(
    topic: TopicClient,
) -> None:
    messages = [{"id": f"m-{n}", "group": f"g-{n % 3}", "data": n} for n in range(100)]
    answer = topic.produce_batch(messages)

    assert answer.status == 200
    results = answer.json()["results"]
    assert [each["id"] for each in results] == [each["id"] for each in messages]
    for group in range(3):
        found = [each["data"] for each in topic.found(group=f"g-{group}")]
        assert found == list(range(group, 100, 3))


def test_what_was_browsed_can_be_sent_in_again(topic: TopicClient, open_url: str) -> None:
    topic.produce_batch(
        [
            {"id": "a", "group": "g", "data": {"x": [1.0]}, "headers": [["x-t", "a, b"]]},
            {"id": "b", "group": "g", "text": "words", "not_before_ms": 4_102_444_800_000},
            {"id": "c", "group": "g", "base64": "/wA=", "cause": "click"},
        ]
    )
    shown = topic.found(group="g")
    other = TopicClient(open_url)
    other.create()
    assert other.produce_batch(shown).status == 200
    assert other.found(group="g") == shown


def test_a_batch_of_one_is_answered_as_a_batch(topic: TopicClient) -> None:
    (result,) = topic.produce_batch([{"id": "only"}]).json()["results"]
    assert (result["id"], result["offset"]) == ("only", 0)


@pytest.mark.parametrize(
    ("body", "status", "field"),
    [
        (b"", 400, "body"),
        (b"{", 400, "body"),
        (b"[]", 400, "body"),
        (b'{"messages": []}', 400, "messages"),
        (b'{"messages": [{}, {"id": ""}]}', 400, "messages[1].id"),
        (b'{"messages": [{"id": "a", "more": 1}]}', 400, "messages[0]"),
        (b'{"messages": [{"data": 1, "text": "a"}]}', 400, "messages[0].data"),
        (b'{"messages": [{"headers": [["x-a", "b\\r\\nc: d"]]}]}', 400, "messages[0].headers"),
        (b'{"messages": [{"id": "%b"}]}' % (b"x" * 101), 400, "messages[0].id"),
        (b'{"messages": [%b]}' % b",".join([b"{}"] * 1001), 413, "messages"),
        (b"[" * 100_000, 400, "body"),
        (b'{"messages": [{"text": "\\ud800"}]}', 400, "body"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_one_wrong_message_is_named_and_nothing_of_the_batch_is_produced(
    topic: TopicClient, body: bytes, status: int, field: str
) -> None:
    answer = topic.produce(body, {"Content-Type": BATCH})
    code = "input.invalid" if status == 400 else "input.too-large"
    assert problem(answer) == (status, code)
    assert answer.json()["errors"][0]["field"] == field
    assert topic.state()["messages"] == 0


def test_the_same_id_twice_is_there_twice_unless_the_topic_deduplicates(open_url: str) -> None:
    plain, once = TopicClient(open_url), TopicClient(open_url)
    plain.create()
    once.create(dedup_seconds=60)
    for client in (plain, once):
        for _ in range(2):
            assert client.produce(b"x", {"Waystation-Id": "same"}).status == 200
        batch = client.produce_batch([{"id": "same"}, {"id": "new"}, {"id": "new"}]).json()
        duplicates = [each["duplicate"] for each in batch["results"]]
        assert duplicates == ([True, False, True] if client is once else [False] * 3)
    assert (plain.state()["messages"], once.state()["messages"]) == (5, 2)


# -- What is refused -------------------------------------------------------------------------


#: What a route needs to get as far as looking at the name.
NEEDED = {
    "/messages": ("?partition=0", b"x"),
    "/options": ("", b'{"version": 1, "options": {}}'),
    "/storage-topics": ("", b'{"partitions": 4}'),
    "/where": ("?group=g", b""),
}


@pytest.mark.parametrize("name", ODD_NAMES)
def test_a_name_that_tries_to_break_out_is_no_name_on_any_route(open_url: str, name: str) -> None:
    """Every route that the document has with a topic in its path, and the one that makes topics."""
    paths = ask(open_url, "GET", "/openapi.json").json()["paths"]
    routes = [
        (method.upper(), path.removeprefix("/v1/topics/{topic}"))
        for path, methods in paths.items()
        for method in methods
        if path.startswith("/v1/topics/{topic}")
    ]
    assert len(routes) >= 13
    for method, rest in routes:
        query, body = NEEDED.get(rest, ("", b""))
        path = f"/v1/topics/{quote(name, safe='')}{rest}{query if method == 'GET' else ''}"
        answer = ask(open_url, method, path, body if method in ("POST", "PUT") else None)
        assert problem(answer) == (400, "input.invalid"), (method, rest, answer)
    made = ask(open_url, "POST", "/v1/topics", json.dumps({"name": name}).encode())
    assert problem(made) == (400, "input.invalid")


@pytest.mark.parametrize(
    ("headers", "field"),
    [
        ({"Waystation-Id": ""}, "waystation-id"),
        ({"Waystation-Id": "x" * 101}, "waystation-id"),
        ({"Waystation-Group": "x" * 101}, "waystation-group"),
        ({"Waystation-Group": "a\tb"}, "waystation-group"),
        ({"Waystation-Not-Before": "tomorrow"}, "waystation-not-before"),
        ({"Waystation-Not-Before": "-1"}, "waystation-not-before"),
        ({"Waystation-Gruop": "g"}, "waystation-gruop"),
        ({"X-Latin": "\xe4"}, "x-latin"),
    ],
    ids=str,
)
def test_a_header_that_is_wrong_is_named(
    topic: TopicClient, headers: dict[str, str], field: str
) -> None:
    answer = topic.produce(b"x", headers)
    assert problem(answer) == (400, "input.invalid")
    assert answer.json()["errors"][0]["field"] == field
    assert topic.state()["messages"] == 0


def test_a_format_that_is_not_spoken_is_415(topic: TopicClient) -> None:
    answer = topic.produce(b"", {"Content-Type": "application/cloudevents+avro"})
    assert problem(answer) == (415, "input.unsupported-media-type")


def test_a_message_has_five_mebibytes_at_most_and_a_body_eight(topic: TopicClient) -> None:
    largest = 5 * MIB - len("m-1")
    assert topic.produce(b"x" * largest, {"Waystation-Id": "m-1"}).status == 200
    over = topic.produce(b"x" * (largest + 1), {"Waystation-Id": "m-1"})
    assert problem(over) == (413, "input.too-large")
    body = topic.produce(b"x" * (8 * MIB + 1))
    assert problem(body) == (413, "input.too-large")
    assert "8388608" in body.json()["detail"]
    # Other routes keep their smaller limit.
    assert topic.ask("POST", "/v1/topics", b" " * (MIB + 1)).status == 413
    assert topic.state()["messages"] == 1


def test_a_body_over_the_limit_is_refused_before_it_was_sent(topic: TopicClient) -> None:
    head = request_bytes("POST", f"{topic.path}/messages", None, {"Content-Length": "9000000"})
    with wire(topic.url) as connection:
        connection.send(head)
        assert problem(connection.answer("POST")) == (413, "input.too-large")


def test_a_small_bound_of_other_routes_leaves_room_for_what_is_produced(settings: Config) -> None:
    """The connection's own bound on a whole request follows the largest body of any route."""
    settings = replace(
        settings,
        http=HttpConfig(port=0, body_bytes_max=1000),
        topics=TopicConfig(message_bytes_max=300_000, body_bytes_max=400_000),
    )
    with background_station(settings) as running:
        client = TopicClient(running.url)
        client.create()
        assert client.produce(b"x" * 299_000).status == 200
        assert problem(client.produce(b"x" * 300_001)) == (413, "input.too-large")
        assert problem(client.produce(b"x" * 400_001)) == (413, "input.too-large")


def test_a_grouped_topic_refuses_a_message_without_a_group(open_url: str) -> None:
    client = TopicClient(open_url)
    client.create(grouped=True)
    assert problem(client.produce(b"x")) == (422, "topic.group-required")
    batch = client.produce_batch([{"group": "g"}, {"id": "none"}])
    assert problem(batch) == (422, "topic.group-required")
    assert batch.json()["errors"][0]["field"] == "messages[1].group"
    assert client.produce(b"x", {"Waystation-Group": "g"}).status == 200
    assert client.state()["messages"] == 1


def test_a_payload_that_does_not_match_the_schema_is_422_and_says_where(open_url: str) -> None:
    client = TopicClient(open_url)
    client.create(json_schema={"properties": {"total": {"type": "number"}}})
    assert client.produce(b'{"total": 1}').status == 200
    answer = client.produce_batch([{"data": {"total": 1}}, {"data": {"total": "secret"}}])
    assert problem(answer) == (422, "topic.schema-mismatch")
    assert (answer.json()["path"], answer.json()["position"]) == ("/total", 1)
    assert b"secret" not in answer.body
    assert client.state()["messages"] == 1
    alone = client.produce_batch([{"data": {"total": "secret"}}])
    assert alone.json()["errors"][0]["field"] == "messages[0].data", "a batch of one is a batch"


def test_a_payload_that_takes_too_long_to_check_is_413_and_says_which(open_url: str) -> None:
    client = TopicClient(open_url)
    choices = [{"const": number} for number in range(3000)]
    client.create(json_schema={"items": {"anyOf": choices}})
    answer = client.produce_batch([{"data": [2999]}, {"data": [2999] * 100_000}])
    assert problem(answer) == (413, "input.too-large")
    assert answer.json()["errors"][0]["field"] == "messages[1].data"
    assert client.state()["messages"] == 0
    assert client.produce(b"[2999, 1]").status == 200


def test_produce_to_an_unknown_a_blocked_and_a_deleted_topic(open_url: str) -> None:
    client = TopicClient(open_url)
    assert problem(client.produce(b"x")) == (404, "topic.not-found")
    client.create()
    assert client.produce(b"x").status == 200
    client.act("block")
    assert problem(client.produce(b"x")) == (422, "topic.blocked")
    client.act("unblock")
    assert client.produce(b"x").status == 200
    client.ask("DELETE", client.path)
    assert problem(client.produce(b"x")) == (404, "topic.not-found")
    assert problem(client.browse(partition=0)) == (404, "topic.not-found")
    client.act("restore")
    assert client.produce(b"x").status == 200
    assert client.state()["messages"] == 3


def test_more_than_the_limit_is_429_with_what_is_left_and_when_to_come_again(
    open_url: str,
) -> None:
    client = TopicClient(open_url)
    client.create(rate={"mode": "enforced", "qps": 50})
    first = client.produce_batch([{}] * 500)
    assert first.status == 200
    assert first.header("ratelimit-policy") == '"messages";q=50;w=1'
    assert (first.header("ratelimit") or "").startswith('"messages";r=0;t=')

    refused = client.produce(b"x")

    assert problem(refused) == (429, "topic.rate-limited")
    assert int(refused.header("retry-after") or 0) >= 5
    assert refused.json()["retry_after_s"] == int(refused.header("retry-after") or 0)
    assert refused.header("ratelimit-policy") == '"messages";q=50;w=1'
    assert client.state()["messages"] == 500


def test_a_limit_in_shadow_refuses_nobody_and_tells_nothing(open_url: str) -> None:
    client = TopicClient(open_url)
    client.create(rate={"mode": "shadow", "qps": 1})
    answers = [client.produce(b"x") for _ in range(5)]
    assert [each.status for each in answers] == [200] * 5
    assert not [each for each in answers if each.header("ratelimit")]


# -- Lone surrogates, as JSON.stringify writes them -------------------------------------------

EVENT = b'{"specversion":"1.0","id":"a","source":"s","type":"t",'
LONE = b'{"t":"\\ud83d","u":"\\ud83d\\ude00\\\\ud83d"}'


@pytest.mark.parametrize(
    ("content_type", "body"),
    [
        (BATCH, b'{"messages":[{"id":"a","data":%b}]}'),
        (BATCH, b'{"messages":[{"id":"a","data":%b,"headers":[["x-a","b"]]}]}'),
        (
            "application/cloudevents+json",
            b'{"specversion":"1.0","id":"a","source":"s","type":"t","data":%b}',
        ),
    ],
)
def test_produce_of_a_lone_surrogate_keeps_its_bytes(
    topic: TopicClient, content_type: str, body: bytes
) -> None:
    answer = topic.produce(body % LONE, {"Content-Type": content_type})

    assert answer.status == 200, answer
    with Waystation(topic.url) as client:
        (message,) = client.topics.messages(topic.name, id="a")
    assert message.stored == LONE
    assert message.content == {"t": "\ud83d", "u": "\U0001f600\\ud83d"}


@pytest.mark.parametrize(
    ("content_type", "body"),
    [
        (BATCH, b'{"messages":[{"id":"\\ud83d","data":1}]}'),
        (BATCH, b'{"messages":[{"text":"\\ud83d"}]}'),
        (
            "application/cloudevents+json",
            b'{"specversion":"1.0","id":"\\ud83d","source":"s","type":"t","data":1}',
        ),
        (
            "application/cloudevents+json",
            EVENT + b'"datacontenttype":"a/b","data":"\\ud83d"}',
        ),
    ],
)
def test_produce_of_a_lone_surrogate_outside_of_json_data_is_refused(
    topic: TopicClient, content_type: str, body: bytes
) -> None:
    answer = topic.produce(body, {"Content-Type": content_type})

    assert problem(answer) == (400, "input.invalid")
