"""Looking at messages over HTTP: by place, by time, page by page; bad questions are told so."""

from __future__ import annotations

from typing import Any

import pytest

from tests.helpers.server import TopicClient, problem


def test_a_partition_is_read_page_by_page_and_the_cursor_is_a_live_tail(open_url: str) -> None:
    client = TopicClient(open_url)
    client.create(partitions=1)
    client.produce_batch([{"id": f"m-{n}"} for n in range(25)])
    seen: list[str] = []
    page: dict[str, Any] = {"cursor": "", "ended": False}
    while not page["ended"]:
        question = {"cursor": page["cursor"]} if page["cursor"] else {}
        page = client.browse(partition=0, limit=10, **question).json()
        seen += [each["message"]["id"] for each in page["messages"]]
    assert seen == [f"m-{n}" for n in range(25)]

    client.produce(b"x", {"Waystation-Id": "new"})
    (new,) = client.browse(partition=0, cursor=page["cursor"]).json()["messages"]
    assert (new["message"]["id"], new["offset"], new["storage"]) == ("new", 25, 0)


def test_by_offset_by_time_and_over_a_switch(open_url: str) -> None:
    client = TopicClient(open_url)
    client.create(partitions=1)
    receipts = [client.produce(b"x", {"Waystation-Group": "g"}).json() for _ in range(3)]
    client.act("storage-topics", {"partitions": 2})
    client.act("switch")
    last = client.produce(b"y", {"Waystation-Group": "g"}).json()

    assert last["storage"] == 1
    assert [each["id"] for each in client.found(partition=0, offset=1)] == [
        each["id"] for each in receipts[1:]
    ]
    assert client.found(partition=0, time_ms=receipts[-1]["time_ms"] + 1) == []
    assert len(client.found(partition=0, time_ms=0)) == 3
    (found,) = client.found(storage=1, partition=last["partition"])
    assert found["id"] == last["id"]
    assert [each["id"] for each in client.found(group="g")] == [
        each["id"] for each in (*receipts, last)
    ]
    (by_id,) = client.found(id=last["id"], group="g")
    assert by_id["text"] == "y"


@pytest.mark.parametrize(
    ("query", "status", "code"),
    [
        ({}, 400, "input.invalid"),
        ({"partition": "x"}, 400, "input.invalid"),
        ({"partition": "1.5"}, 400, "input.invalid"),
        ({"partition": "9" * 40}, 400, "input.invalid"),
        ({"partition": 4}, 404, "log.not-found"),
        ({"partition": -1}, 404, "log.not-found"),
        ({"partition": 0, "storage": 1}, 404, "log.not-found"),
        ({"partition": 0, "offset": 1}, 400, "log.offset-out-of-range"),
        ({"partition": 0, "offset": -1}, 400, "log.offset-out-of-range"),
        ({"partition": 0, "offset": 10**17}, 400, "log.offset-out-of-range"),
        ({"partition": 0, "time_ms": -1}, 400, "input.invalid"),
        ({"partition": 0, "time_ms": 10**17}, 400, "input.invalid"),
        ({"partition": 0, "offset": 0, "time_ms": 0}, 400, "input.invalid"),
        ({"partition": 0, "limit": 0}, 400, "input.invalid"),
        ({"partition": 0, "limit": 1001}, 400, "input.invalid"),
        ({"partition": 0, "cursor": "abc"}, 400, "input.invalid"),
        ({"group": "g", "partition": 0}, 400, "input.invalid"),
        ({"id": "i", "offset": 0}, 400, "input.invalid"),
        ({"group": ""}, 400, "input.invalid"),
        ({"id": "x" * 101}, 400, "input.invalid"),
        ({"group": "a\0b"}, 400, "input.invalid"),
    ],
    ids=str,
)
def test_a_question_that_makes_no_sense_is_told_so(
    topic: TopicClient, query: dict[str, object], status: int, code: str
) -> None:
    answer = topic.browse(**query)
    assert problem(answer) == (status, code)
    if code == "log.offset-out-of-range":
        assert (answer.json()["first"], answer.json()["end"]) == (0, 0)


def test_a_cursor_of_another_question_is_refused(topic: TopicClient) -> None:
    cursor = topic.browse(group="a").json()["cursor"]
    assert topic.browse(group="a", cursor=cursor).status == 200
    assert problem(topic.browse(group="b", cursor=cursor)) == (400, "input.invalid")
