"""`/v1/topics`: definitions, versions, growth, whereabouts, standing; each project has its own."""

from __future__ import annotations

import asyncio
import json
import sys
from asyncio.subprocess import PIPE
from typing import Any

import pytest
from msgspec.structs import replace

from tests.api.conftest import Guarded
from tests.helpers.http import ask, async_ask
from tests.helpers.server import TopicClient, background_station, problem
from waystation.config import Config, TopicConfig
from waystation.node import MAINTENANCE_S
from waystation.store.keys import MAINTENANCE_LEASE
from waystation.testing import Station, serving
from waystation.types.topic import TopicOptions

DEFAULTS = {
    "grouped": False,
    "max_bytes": 268_435_456,
    "max_age_seconds": 604_800.0,
    "full_policy": "refuse",
    "dedup_seconds": 0.0,
    "json_schema": None,
    "rate": {"mode": "disabled", "qps": None, "bytes_per_second": None},
    "record": "full",
    "redact": [],
}


@pytest.fixture
def topic(open_url: str) -> TopicClient:
    """A name for a topic that is not there yet."""
    return TopicClient(open_url)


def test_the_first_lines_of_the_guide_work_with_curl_as_it_comes(open_url: str) -> None:
    """It says that every body is a form, whatever it is."""
    form = {"Content-Type": "application/x-www-form-urlencoded", "Accept": "*/*"}
    made = ask(open_url, "POST", "/v1/topics", b'{"name": "orders"}', form)
    assert made.status == 201, made
    headers = {
        "Content-Type": "application/json",
        "Waystation-Id": "order-17",
        "Waystation-Group": "customer-5",
    }
    client = TopicClient(open_url, "orders")
    assert client.produce(b'{"total": 12.50}', headers).json()["partition"] == 1
    (found,) = client.found(group="customer-5")
    assert (found["id"], found["data"]) == ("order-17", {"total": 12.5})
    for verb, body in (("storage-topics", b'{"partitions": 12}'), ("switch", b"")):
        answer = ask(open_url, "POST", f"{client.path}/{verb}", body, form)
        assert answer.status in (200, 201), answer
    wish = b'{"version": 3, "options": {"max_bytes": 1000000000, "dedup_seconds": 600}}'
    assert ask(open_url, "PUT", f"{client.path}/options", wish, form).status == 200


# -- Definitions -----------------------------------------------------------------------------


def test_a_topic_is_created_with_four_partitions_and_shown(topic: TopicClient) -> None:
    answer = topic.ask("POST", "/v1/topics", {"name": topic.name})

    assert answer.status == 201
    made = answer.json()
    assert made["created_ms"] > 1_600_000_000_000
    assert made == {
        "name": topic.name,
        "version": 1,
        "state": "active",
        "options": DEFAULTS,
        "storage": [{"partitions": 4, "factor": 1}],
        "produce_pointer": 0,
        "created_ms": made["created_ms"],
        "warning": None,
    }
    assert topic.ask("GET", topic.path).json() == made


def test_a_name_is_used_once_until_its_topic_was_purged(topic: TopicClient) -> None:
    topic.create()
    assert problem(topic.ask("POST", "/v1/topics", {"name": topic.name})) == (409, "conflict")
    topic.produce(b"old")
    assert problem(topic.act("purge")) == (409, "conflict")
    assert topic.ask("DELETE", topic.path).status == 204
    assert problem(topic.ask("POST", "/v1/topics", {"name": topic.name})) == (409, "conflict")
    assert topic.act("purge").status == 204
    assert topic.act("purge").status == 204
    made = topic.create()
    assert made["version"] > 1
    assert topic.state()["messages"] == 0


@pytest.mark.parametrize(("partitions", "warned"), [(1, False), (12, False), (5, True), (10, True)])
def test_a_partition_count_that_is_not_advised_has_a_warning(
    topic: TopicClient, partitions: int, warned: bool
) -> None:
    warning = topic.create(partitions)["warning"]
    assert bool(warned) is (warning is not None)
    assert not warned or "multiples of 4 or 6" in warning
    grown = topic.act("storage-topics", {"partitions": 7}).json()
    assert grown["warning"].startswith("7 partitions")


def test_strict_counts_are_a_setting(settings: Config) -> None:
    settings = replace(settings, topics=TopicConfig(strict_partitions=True))
    with background_station(settings) as running:
        client = TopicClient(running.url)
        refused = client.ask("POST", "/v1/topics", {"name": client.name, "partitions": 5})
        assert problem(refused) == (400, "input.invalid")
        assert refused.json()["errors"][0]["field"] == "partitions"
        client.create(6)
        assert problem(client.act("storage-topics", {"partitions": 9})) == (400, "input.invalid")


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (b"", "body"),
        (b"{", "truncated"),
        (b"[]", "object"),
        (b"{}", "name"),
        (b'{"name": "a\\n"}', "name"),
        (b'{"name": 1}', "name"),
        (b'{"name": "t", "more": 1}', "more"),
        (b'{"name": "t", "partitions": 0}', "partitions"),
        (b'{"name": "t", "partitions": 1025}', "partitions"),
        (b'{"name": "t", "partitions": "4"}', "partitions"),
        (b'{"name": "t", "partitions": 1.5}', "partitions"),
        (b'{"name": "t", "options": {"gruoped": true}}', "gruoped"),
        (b'{"name": "t", "options": {"max_bytes": 0}}', "max_bytes"),
        (b'{"name": "t", "options": {"record": "some"}}', "record"),
        (b'{"name": "t", "options": {"redact": ["card"]}}', "redact"),
        (b'{"name": "t", "options": {"redact": "/card"}}', "redact"),
        (b'{"name": "t", "options": {"max_bytes": 99999999999999999999}}', "max_bytes"),
        (b'{"name": "t", "options": {"max_age_seconds": 0}}', "max_age_seconds"),
        (b'{"name": "t", "options": {"max_age_seconds": 1e300}}', "max_age_seconds"),
        (b'{"name": "t", "options": {"max_age_seconds": 1e999}}', "out of range"),
        (b'{"name": "t", "options": {"full_policy": "forget"}}', "full_policy"),
        (b'{"name": "t", "options": {"dedup_seconds": -1}}', "dedup_seconds"),
        (b'{"name": "t", "options": {"dedup_seconds": 604801}}', "dedup_seconds"),
        (b'{"name": "t", "options": {"rate": {"mode": "sometimes"}}}', "mode"),
        (b'{"name": "t", "options": {"rate": {"mode": "enforced"}}}', "must have `qps`"),
        (b'{"name": "t", "options": {"rate": {"mode": "enforced", "qps": 0}}}', "qps"),
        (b'{"name": "t", "options": {"rate": {"mode": "enforced", "qps": 1e9}}}', "qps"),
        (b'{"name": "t", "options": {"rate": {"qps": 9, "bytes_per_second": 1}}}', "bytes_per"),
        (b'{"name": "t", "options": {"json_schema": true}}', "json_schema"),
        (b'{"name": "t", "options": {"json_schema": {"type": 7}}}', "JSON Schema"),
        (b'{"name": "t", "options": {"json_schema": {"$ref": "http://a/b"}}}', "reference"),
        (b'{"name": "t", "options": {"json_schema": {"$ref": "#"}}}', "is recursive"),
        (b'{"name": "t", "options": {"json_schema": {"a": ' + b"[" * 9999 + b"]" * 9999, "JSON"),
    ],
    ids=lambda value: str(value)[:70],
)
def test_a_definition_that_cannot_be_is_told_why_and_makes_nothing(
    open_url: str, body: bytes, told: str
) -> None:
    answer = ask(open_url, "POST", "/v1/topics", body)
    status, code = problem(answer)
    assert status == 400
    assert code in ("input.invalid", "input.too-deep", "topic.schema-invalid")
    assert told in json.dumps(answer.json())
    assert problem(ask(open_url, "GET", "/v1/topics/t")) == (404, "topic.not-found")


def test_options_are_replaced_against_a_version(topic: TopicClient) -> None:
    topic.create(dedup_seconds=60)
    wish = {"version": 1, "options": {"max_bytes": 1000}}

    changed = topic.ask("PUT", f"{topic.path}/options", wish)

    assert changed.status == 200
    assert (changed.json()["version"], changed.json()["options"]) == (
        2,
        {**DEFAULTS, "max_bytes": 1000},
    )
    again = topic.ask("PUT", f"{topic.path}/options", wish)
    assert problem(again) == (409, "conflict")
    assert "version 2, not 1" in again.json()["detail"]
    bad = {"version": 2, "options": {"json_schema": {"type": "no"}}}
    assert problem(topic.ask("PUT", f"{topic.path}/options", bad)) == (400, "topic.schema-invalid")
    bad = {"version": 2, "options": {"rate": {"mode": "enforced"}}}
    assert problem(topic.ask("PUT", f"{topic.path}/options", bad)) == (400, "input.invalid")
    assert topic.ask("GET", topic.path).json()["version"] == 2


def test_new_options_count_at_once(topic: TopicClient) -> None:
    topic.create()
    assert topic.produce(b"not JSON").status == 200
    wish = {"version": 1, "options": {"json_schema": {"type": "object"}, "grouped": True}}
    topic.ask("PUT", f"{topic.path}/options", wish)
    assert problem(topic.produce(b"{}")) == (422, "topic.group-required")
    grouped = {"Waystation-Group": "g"}
    assert problem(topic.produce(b"1", grouped)) == (422, "topic.schema-mismatch")
    assert topic.produce(b"{}", grouped).status == 200


def test_deleted_topics_are_listed_only_if_asked_for_and_can_be_restored(
    topic: TopicClient,
) -> None:
    topic.create()
    kept = topic.produce(b"kept").json()
    assert problem(topic.act("restore")) == (409, "conflict")
    assert topic.ask("DELETE", topic.path).status == 204
    assert problem(topic.ask("DELETE", topic.path)) == (404, "topic.not-found")
    assert problem(topic.ask("GET", topic.path)) == (404, "topic.not-found")

    def listed(query: str) -> dict[str, str]:
        page = topic.ask("GET", f"/v1/topics?limit=1000{query}").json()
        return {each["name"]: each["state"] for each in page["topics"]}

    assert topic.name not in listed("")
    assert listed("&deleted=true")[topic.name] == "deleted"
    assert topic.act("restore").json()["state"] == "active"
    assert [each["id"] for each in topic.found(id=kept["id"])] == [kept["id"]]


@pytest.mark.parametrize("verb", ["restore", "purge", "block", "unblock", "switch"])
def test_a_verb_on_a_topic_that_is_not_there_is_404(topic: TopicClient, verb: str) -> None:
    assert problem(topic.act(verb)) == (404, "topic.not-found")


def test_everything_else_on_a_topic_that_is_not_there_is_404_too(topic: TopicClient) -> None:
    for answer in (
        topic.ask("GET", topic.path),
        topic.ask("GET", f"{topic.path}/state"),
        topic.ask("GET", f"{topic.path}/where?group=g"),
        topic.ask("DELETE", topic.path),
        topic.ask("PUT", f"{topic.path}/options", {"version": 1, "options": {}}),
        topic.act("storage-topics", {"partitions": 4}),
        topic.browse(),
    ):
        assert problem(answer) == (404, "topic.not-found"), answer


def test_a_long_list_comes_in_pages_by_name(settings: Config) -> None:
    with background_station(settings) as running:
        names = [f"t-{number:02}" for number in range(25)]
        for name in names:
            TopicClient(running.url, name).create(1)
        found: list[str] = []
        cursor, pages = "", 0
        while cursor or not pages:
            pages += 1
            page = ask(running.url, "GET", f"/v1/topics?limit=10&cursor={cursor}").json()
            found += [each["name"] for each in page["topics"]]
            cursor = page["cursor"]
        assert (found, pages) == (names, 3)
        for limit in ("0", "1001", "x", "1.5"):
            answer = ask(running.url, "GET", f"/v1/topics?limit={limit}")
            assert problem(answer) == (400, "input.invalid")


# -- Growing ---------------------------------------------------------------------------------


def test_a_topic_grows_and_the_switch_moves_what_is_produced(topic: TopicClient) -> None:
    topic.create(4)
    added = topic.act("storage-topics", {"partitions": 12})
    assert added.status == 201
    assert added.json()["storage"] == [
        {"partitions": 4, "factor": 1},
        {"partitions": 12, "factor": 3},
    ]
    assert topic.produce(b"before").json()["storage"] == 0

    assert topic.act("switch").json()["produce_pointer"] == 1

    assert topic.produce(b"after").json()["storage"] == 1
    standing = topic.state()["partitions"]
    assert {(each["storage"], each["sealed"]) for each in standing} == {(0, True), (1, False)}
    assert topic.act("switch").json()["produce_pointer"] == 1


def test_a_storage_topic_for_a_version_is_not_added_twice(topic: TopicClient) -> None:
    topic.create()
    wish = {"partitions": 8, "version": 1}
    assert topic.act("storage-topics", wish).status == 201
    # The reply was lost, say, and the client asks again.
    assert problem(topic.act("storage-topics", wish)) == (409, "conflict")
    assert len(topic.ask("GET", topic.path).json()["storage"]) == 2


def test_a_switch_of_a_version_is_not_made_twice(topic: TopicClient) -> None:
    topic.create()
    for _ in range(2):
        version = topic.act("storage-topics", {"partitions": 4}).json()["version"]
    assert topic.act(f"switch?version={version}").json()["produce_pointer"] == 1
    # The reply was lost, say, and the client asks again.
    assert problem(topic.act(f"switch?version={version}")) == (409, "conflict")
    assert topic.ask("GET", topic.path).json()["produce_pointer"] == 1
    assert problem(topic.act("switch?version=no")) == (400, "input.invalid")


@pytest.mark.parametrize("body", [b"", b"{}", b'{"partitions": 0}', b'{"partitions": 5, "k": 1}'])
def test_a_storage_topic_that_cannot_be_is_not_added(topic: TopicClient, body: bytes) -> None:
    topic.create()
    assert problem(topic.act("storage-topics", body)) == (400, "input.invalid")
    assert topic.ask("GET", topic.path).json()["version"] == 1


# -- Where, and how it stands ----------------------------------------------------------------


def test_where_tells_the_partition_in_every_storage_topic_and_the_shard(
    topic: TopicClient,
) -> None:
    topic.create(4)
    topic.act("storage-topics", {"partitions": 12})

    def where(query: str) -> dict[str, Any]:
        found: dict[str, Any] = topic.ask("GET", f"{topic.path}/where?{query}").json()
        return found

    found = where("group=customer-17&shards=2")
    assert (found["group"], found["hash"], found["consistent"]) == (
        "customer-17",
        5972413428757149882,
        True,
    )
    assert [each["current"] for each in found["positions"]] == [True, False]
    assert len({each["shard"] for each in found["positions"]}) == 1
    assert where("group=customer-17&shards=3")["consistent"] is False
    assert where("group=customer-17")["positions"][0]["shard"] is None
    topic.produce(b"x", {"Waystation-Group": "customer-17"})
    (message,) = topic.browse(group="customer-17").json()["messages"]
    assert message["partition"] == found["positions"][0]["partition"]


@pytest.mark.parametrize(
    "query",
    ["", "group=", "group=g&shards=0", "group=g&shards=x", f"group={'x' * 101}", "group=%00"],
)
def test_where_asks_for_a_group_and_a_sensible_number_of_shards(
    topic: TopicClient, query: str
) -> None:
    topic.create()
    answer = topic.ask("GET", f"{topic.path}/where?{query}")
    assert problem(answer) == (400, "input.invalid")


def test_the_state_tells_every_partition(topic: TopicClient) -> None:
    topic.create(2)
    receipts = [topic.produce(b"x" * 10).json() for _ in range(6)]
    state = topic.state()
    assert (state["messages"], state["dropped"], state["warnings"]) == (6, 0, [])
    assert state["bytes"] == sum(each["bytes"] for each in state["partitions"]) > 60
    for each in state["partitions"]:
        there = [r for r in receipts if r["partition"] == each["partition"]]
        assert (each["storage"], each["first"], each["end"]) == (0, 0, len(there))
        assert each["last_ms"] == max([r["time_ms"] for r in there], default=0)
        assert (each["sealed"], each["warned_ms"], each["dropped"]) == (False, 0, 0)


def test_a_partition_that_is_nearly_full_is_warned_about(station: Station) -> None:
    client = TopicClient(station.url)
    client.create(1, max_bytes=1000)
    while client.state()["bytes"] < 700:
        assert client.produce(b"x" * 50).status == 200
    station.advance(seconds=MAINTENANCE_S + 1)
    # Upkeep of the node itself notices; it wakes by the jump, and takes a moment.
    while not (state := client.state())["warnings"]:
        pass
    assert state["partitions"][0]["warned_ms"] > 0
    assert "70 %" in state["warnings"][0]
    assert "refuse" in state["warnings"][0]

    def notes() -> str:
        return " ".join(ask(station.url, "GET", "/readyz").json()["notes"])

    # A moment after the pass that wrote the warning has ended; and over once there is room.
    while "1 partitions of logs are nearly full" not in notes():
        pass
    options = {"version": 1, "options": {"max_bytes": 100_000}}
    assert client.ask("PUT", f"{client.path}/options", options).status == 200
    station.advance(seconds=MAINTENANCE_S + 1)
    while "nearly full" in notes():
        pass
    assert client.state()["warnings"] == []


@pytest.mark.slow
async def test_what_a_reader_lost_is_counted_and_shown(settings: Config) -> None:
    async with serving(settings) as running:
        options = TopicOptions(max_bytes=1000, full_policy="drop_and_count")
        topic = await running.node.topics.create("default", "t", partitions=1, options=options)
        await running.node.logs.hold(topic.log(topic.target), 0, "slow", 0)
        for _ in range(20):
            made = await async_ask(running.url, "POST", "/v1/topics/t/messages", b"x" * 150)
            assert made.status == 200

        state = (await async_ask(running.url, "GET", "/v1/topics/t/state")).json()

        lost = state["partitions"][0]["first"]
        assert (state["dropped"], state["partitions"][0]["dropped"]) == (lost, lost)
        assert lost >= 14
        assert f"{lost} messages were dropped although a reader needed them." in state["warnings"]
        command = [sys.executable, "-m", "waystation.cli.main", "topic", "show", "t"]
        shown = await asyncio.create_subprocess_exec(
            *command, "--url", running.url, stdout=PIPE, stderr=PIPE
        )
        table, noted = await shown.communicate()
        assert table.split()[-1] == str(lost).encode()
        assert b"dropped although a reader" in b" ".join(noted.split())


# -- Projects --------------------------------------------------------------------------------


@pytest.fixture
def two(guarded: Guarded) -> tuple[TopicClient, TopicClient]:
    """The same name in two projects, each with its admin's key."""
    ours = TopicClient(guarded.url, key=guarded.keys.admin)
    return ours, TopicClient(guarded.url, ours.name, key=guarded.keys.shop_admin)


def test_a_topic_of_another_project_is_not_there(two: tuple[TopicClient, TopicClient]) -> None:
    """S-09: every route of the one, asked by the other, as if it had never been made."""
    ours, theirs = two
    ours.create()
    ours.produce(b"secret", {"Waystation-Group": "g"})
    for answer in (
        theirs.produce(b"x"),
        theirs.browse(group="g"),
        theirs.ask("GET", theirs.path),
        theirs.ask("GET", f"{theirs.path}/state"),
        theirs.ask("GET", f"{theirs.path}/where?group=g"),
        theirs.ask("PUT", f"{theirs.path}/options", {"version": 1, "options": {}}),
        theirs.act("storage-topics", {"partitions": 4}),
        *(theirs.act(verb) for verb in ("block", "unblock", "switch", "restore", "purge")),
        theirs.ask("DELETE", theirs.path),
    ):
        assert problem(answer) == (404, "topic.not-found")
    assert theirs.name not in theirs.ask("GET", "/v1/topics?deleted=true").body.decode()
    assert ours.ask("GET", ours.path).json()["version"] == 1


def test_the_same_name_in_two_projects_is_two_topics(two: tuple[TopicClient, TopicClient]) -> None:
    ours, theirs = two
    ours.create()
    theirs.create(8)
    ours.produce(b"ours", {"Waystation-Group": "g"})
    theirs.produce(b"theirs", {"Waystation-Group": "g"})
    assert [each["text"] for each in ours.found(group="g")] == ["ours"]
    assert [each["text"] for each in theirs.found(group="g")] == ["theirs"]
    theirs.ask("DELETE", theirs.path)
    theirs.act("purge")
    assert ours.state()["messages"] == 1


# -- Its place in a node ---------------------------------------------------------------------


async def test_a_stopped_node_gives_the_lease_of_upkeep_back(
    settings: Config,
) -> None:
    for epoch in (b"1", b"2"):
        async with serving(settings) as running:
            store = running.node.opened.store
            # One that has to wait for the lease to run out would come ten seconds later.
            async with asyncio.timeout(MAINTENANCE_S / 2):
                while await store.call("HGET", MAINTENANCE_LEASE, "epoch") != epoch:
                    await asyncio.sleep(0.005)
