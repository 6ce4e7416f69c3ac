"""`/v1/subscriptions` of a whole station that delivers to a real endpoint."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, urlencode

import pytest
from msgspec.structs import replace

from tests.api.conftest import Guarded
from tests.helpers.http import Answer, ask, async_ask
from tests.helpers.server import TopicClient, background_station, problem
from waystation import errors
from waystation.api.problems import status_of
from waystation.config import Config, SubscriptionConfig
from waystation.errors import WaystationError
from waystation.subscriptions.states import ShardState
from waystation.testing import serving
from waystation.testing.endpoint import Answer as Told
from waystation.testing.endpoint import FakeEndpoint
from waystation.testing.station import Serving

_numbers = itertools.count(1)
#: Nothing is tried again while a test looks; 403 is never tried again.
LATER = {"first_seconds": 600}
NEVER = 403


@dataclass(frozen=True)
class Client:
    """Asks about one subscription to one topic, both of its own."""

    url: str
    key: str = ""
    name: str = field(default_factory=lambda: f"sub-{next(_numbers)}")

    @property
    def topic(self) -> TopicClient:
        return TopicClient(self.url, f"topic-of-{self.name}", key=self.key)

    def ask(self, method: str, path: str = "", body: Any = None) -> Answer:
        given = None if body is None else json.dumps(body).encode()
        return ask(self.url, method, f"/v1/subscriptions{path}", given, key=self.key)

    async def of(self, method: str, path: str = "", body: Any = None, **query: object) -> Any:
        """An answer that is none of a problem."""
        asked = f"/{self.name}{path}" + (f"?{urlencode(query)}" if query else "")
        answer = await asyncio.to_thread(self.ask, method, asked, body)
        assert answer.status < 300, answer
        return answer.json() if answer.body else None

    async def refused(self, method: str, path: str = "", body: Any = None) -> tuple[int, str]:
        return problem(await asyncio.to_thread(self.ask, method, f"/{self.name}{path}", body))

    async def create(self, endpoint: str, *, partitions: int = 4, **fields: Any) -> dict[str, Any]:
        """A grouped topic and a subscription to it."""
        await asyncio.to_thread(self.topic.create, partitions, grouped=True)
        body = {"name": self.name, "topic": self.topic.name, "endpoint": endpoint, **fields}
        answer = await asyncio.to_thread(self.ask, "POST", "", body)
        assert answer.status == 201, answer
        made: dict[str, Any] = answer.json()
        return made

    async def produce(self, *ids: str) -> None:
        """The group is what stands before the last dash."""
        rows = [
            {"id": each, "group": each.rpartition("-")[0], "data": {"id": each}} for each in ids
        ]
        answer = await asyncio.to_thread(self.topic.produce_batch, rows)
        assert answer.status == 200, answer

    async def parked(self, group: str) -> Any:
        found = await self.of("GET", "/group", group=group, state="parked", wait="30s")
        assert found["state"] == "parked", found
        return found

    async def ended(self, operation: str) -> Any:
        found = await self.of("GET", f"/operations/{operation}", wait="30s")
        assert found["state"] == "done", found
        return found


@pytest.fixture(scope="module")
def running(module_store_settings: Config) -> Iterator[Serving]:
    # It does not wait for endpoints that hang when it stops.
    settings = replace(module_store_settings, subscriptions=SubscriptionConfig(grace_seconds=0.05))
    with background_station(settings) as running:
        yield running


@pytest.fixture
def client(running: Serving) -> Client:
    return Client(running.url)


async def all_paused(running: Serving, name: str) -> None:
    """Waits until the shards have heard of a pause."""
    host = running.node.subscriptions.host
    assert host is not None

    def states() -> list[ShardState]:
        return [each.state for place, each in host.shards.items() if place.subscription == name]

    async with asyncio.timeout(10):
        while states() != [ShardState.PAUSED] * 4:
            await asyncio.sleep(0.01)


# -- Definitions ------------------------------------------------------------------------------


async def test_name_topic_and_endpoint_are_enough(client: Client) -> None:
    async with FakeEndpoint() as endpoint:
        made = await client.create(endpoint.url)
        assert made["secret"].startswith("whsec_")
        assert (made["state"], made["shards"], made["version"]) == ("active", 4, 2)
        await client.produce("g-0")
        (received,) = await endpoint.until(1)
        assert received.headers["waystation-subscription"] == client.name
        shown = await client.of("GET")
        assert "secret" not in shown, "it is told once"
        assert made.pop("warning") is None
        assert shown == {name: value for name, value in made.items() if name != "secret"}


async def test_subscriptions_are_listed_by_name_page_by_page(client: Client) -> None:
    await client.create("channel:news")
    names = [f"{client.name}-{letter}" for letter in "ab"]
    for name in names:
        body = {"name": name, "topic": client.topic.name, "endpoint": "channel:news"}
        assert client.ask("POST", "", body).status == 201
    page = client.ask("GET", f"?limit=1&cursor={client.name}").json()
    assert [each["name"] for each in page["subscriptions"]] == [names[0]]
    page = client.ask("GET", f"?limit=1&cursor={page['cursor']}").json()
    assert [each["name"] for each in page["subscriptions"]] == [names[1]]


async def test_a_name_is_taken_once_and_free_after_a_deletion(client: Client) -> None:
    made = await client.create("channel:news")
    assert made["secret"] is None, "nothing is signed"
    body = {"name": client.name, "topic": client.topic.name, "endpoint": "channel:news"}
    assert problem(client.ask("POST", "", body)) == (409, "conflict")
    assert problem(client.topic.ask("DELETE", client.topic.path)) == (409, "topic.subscribed")
    assert client.ask("DELETE", f"/{client.name}").status == 204
    assert await client.refused("GET") == (404, "subscription.not-found")
    assert await client.refused("DELETE") == (404, "subscription.not-found")
    assert client.ask("POST", "", body).json()["incarnation"] == 2
    assert client.ask("DELETE", f"/{client.name}").status == 204
    assert client.topic.ask("DELETE", client.topic.path).status == 204


@pytest.mark.parametrize(
    ("change", "status", "code"),
    [
        ({"name": "No Name"}, 400, "input.invalid"),
        ({"name": None}, 400, "input.invalid"),
        ({"colour": "red"}, 400, "input.invalid"),
        ({"topic": "nobody"}, 404, "topic.not-found"),
        ({"endpoint": "ftp://x/"}, 400, "subscription.endpoint-invalid"),
        ({"endpoint": "pool:workers"}, 400, "subscription.endpoint-invalid"),
        ({"endpoint": "http://10.0.0.1/"}, 400, "endpoint.forbidden"),
        ({"shards": 0}, 400, "subscription.shards-invalid"),
        ({"shards": "4"}, 400, "input.invalid"),
        ({"from": 9_000_000_000_000}, 400, "input.invalid"),
        ({"from": "somewhere"}, 400, "input.invalid"),
        ({"options": {"poison": "forget"}}, 400, "input.invalid"),
        ({"options": {"retry": {"attempts": -1}}}, 400, "input.invalid"),
        ({"options": {"headers": [["x y", "1"]]}}, 400, "input.invalid"),
        ({"options": {"headers": [["x\r\ny", "1"]]}}, 400, "input.invalid"),
        ({"options": {"headers": [["x", "1\r\ny: 2"]]}}, 400, "input.invalid"),
        ({"options": {"headers": [["x", "1\u0000"]]}}, 400, "input.invalid"),
        ({"options": {"headers": [["Host", "x"]]}}, 400, "input.invalid"),
        ({"options": {"headers": [["content-length", "1"]]}}, 400, "input.invalid"),
        ({"options": {"headers": [["Webhook-Signature", "x"]]}}, 400, "input.invalid"),
        ({"options": {"grouped": True}}, 400, "subscription.group-mismatch"),
    ],
)
async def test_bad_input_is_refused_with_a_code_and_nothing_is_written(
    client: Client, change: dict[str, Any], status: int, code: str
) -> None:
    client.topic.create()
    body = {"name": client.name, "topic": client.topic.name, "endpoint": "channel:news"}
    assert problem(client.ask("POST", "", {**body, **change})) == (status, code)
    assert await client.refused("GET") == (404, "subscription.not-found")


async def test_a_change_names_the_version_it_was_made_from(client: Client) -> None:
    made = await client.create("channel:news")
    change = {"version": made["version"], "options": {"poison": "skip"}}
    changed = await client.of("PUT", body={**change, "endpoint": "channel:other"})
    assert (changed["options"]["poison"], changed["endpoint"]) == ("skip", "channel:other")
    assert changed["version"] == made["version"] + 1
    assert await client.refused("PUT", body=change) == (409, "conflict")


async def test_a_pause_has_an_end_and_a_reason_and_lasts_until_it_is_resumed(
    running: Serving, client: Client
) -> None:
    async with FakeEndpoint() as endpoint:
        await client.create(endpoint.url)
        assert await client.refused("POST", "/pause", {"until": 1}) == (400, "input.invalid")
        until = 4_000_000_000_000
        paused = await client.of("POST", "/pause", {"until": until, "reason": "stocktaking"})
        assert (paused["paused"], paused["paused_until_ms"]) == (True, until)
        await all_paused(running, client.name)
        await client.produce("g-0")
        standing = await client.of("GET", "/shards")
        assert (standing["state"], standing["lag"]) == ("paused", 1)
        assert {each["reason"] for each in standing["shards"]} == {"paused"}
        why = await client.of("GET", "/why", message="g-0")
        assert (why["subject"], why["code"]) == ("message", "paused")
        assert why["facts"]["reason"] == "stocktaking"
        assert not (await client.of("POST", "/resume"))["paused"]
        await endpoint.until(1)


async def test_a_sample_shows_request_and_reply_and_a_rotation_the_new_secret(
    client: Client,
) -> None:
    async with FakeEndpoint(plan=[Told(418, body=b"a teapot")]) as endpoint:
        made = await client.create(endpoint.url)
        sample = await client.of("POST", "/test")
        assert (sample["request"], sample["status"]) == (f"POST {endpoint.url}", 418)
        assert (sample["excerpt"], bool(sample["problem"])) == ("a teapot", True)
        assert "webhook-signature" in dict(sample["headers"])
        rotated = await client.of("POST", "/secret/rotate")
        assert rotated["secret"].startswith("whsec_")
        assert rotated["secret"] != made["secret"]
    other = Client(client.url)
    await other.create("channel:news")
    assert await other.refused("POST", "/secret/rotate") == (400, "input.invalid")


async def test_a_resume_sends_again_to_an_endpoint_that_wanted_nothing_more(
    client: Client,
) -> None:
    async with FakeEndpoint(plan=[410, 200]) as endpoint:
        await client.create(endpoint.url)
        await client.produce("g-0")
        await endpoint.until(1)
        async with asyncio.timeout(10):
            while (await client.of("GET", "/why"))["code"] != "endpoint_disabled":
                await asyncio.sleep(0.02)
        await client.of("POST", "/resume")
        assert (await endpoint.until(2))[1].status == 200


# -- Groups and dead letters ------------------------------------------------------------------


async def test_a_group_is_waited_for_until_it_is_in_a_state(client: Client) -> None:
    async with FakeEndpoint(plan=[Told(NEVER, delay_seconds=0.3, body=b"no")]) as endpoint:
        await client.create(endpoint.url)
        clean = await client.of("GET", "/group", group="g")
        assert (clean["state"], clean["head"]) == ("clean", None)
        await client.produce("g-0", "g-1")
        found = await client.parked("g")
        head = found["head"]
        assert (head["id"], head["failure"], head["excerpt"]) == ("g-0", "403", "no")
        assert (head["attempts"], head["first_failure_ms"]) == (1, head["last_failure_ms"])
        over = await client.of("GET", "/group", group="g", state="clean", wait="150ms")
        assert over["state"] == "parked", "the time was over"


@pytest.mark.parametrize(
    "query",
    ["", "?group=", "?group=g&state=happy", "?group=g&wait=1s", "?group=g&state=clean&wait=soon"],
)
async def test_a_wait_that_makes_no_sense_is_refused(client: Client, query: str) -> None:
    await client.create("channel:news")
    assert await client.refused("GET", f"/group{query}") == (400, "input.invalid")


async def test_who_waits_is_answered_when_the_station_stops(
    own_store_settings: Config,
) -> None:
    async with serving(own_store_settings) as station:
        node = station.node
        await node.topics.create("default", "orders", partitions=1)
        body = json.dumps({"name": "crm", "topic": "orders", "endpoint": "channel:news"}).encode()
        path = "/v1/subscriptions"
        assert (await async_ask(station.url, "POST", path, body)).status == 201
        waiting = f"{path}/crm/group?group=g&state=parked&wait=30s"
        wait = asyncio.create_task(async_ask(station.url, "GET", waiting))
        async with asyncio.timeout(5):
            while not station.server._server.server_state.tasks:
                await asyncio.sleep(0.01)
            stopping = asyncio.create_task(station.server.stop())
            answer = await wait
            await stopping
        assert (answer.status, answer.json()["state"]) == (200, "clean")


async def test_a_group_may_be_any_text(client: Client) -> None:
    async with FakeEndpoint(plan=[NEVER]) as endpoint:
        await client.create(endpoint.url)
        group = "../a/b c?&ü%2f"
        await client.produce(f"{group}-0")
        assert (await client.parked(group))["group"] == group
        why = await client.of("GET", "/why", group=group)
        assert (why["code"], why["facts"]["group"]) == ("parked", group)
        found = await client.of("GET", "/dead-letters", group=group)
        assert [each["group"] for each in found["dead_letters"]] == [group]
        done = await client.of("POST", "/purge", {"group": group})
        assert done["count"] == 1


async def test_groups_are_listed_by_state_over_all_shards(client: Client) -> None:
    async with FakeEndpoint(plan=[NEVER]) as endpoint:
        await client.create(endpoint.url, options={"retry": LATER})
        groups = {f"g{n}" for n in range(12)}
        await client.produce(*(f"{each}-0" for each in groups))
        for each in groups:
            await client.parked(each)
        endpoint.plan = [500]
        await client.produce("r-0")
        await client.of("GET", "/group", group="r", state="retrying", wait="10s")

        async def all_of(**query: object) -> list[str]:
            rows: list[str] = []
            cursor = ""
            for _ in range(100):
                page = await client.of("GET", "/groups", limit=2, cursor=cursor, **query)
                rows += (each["group"] for each in page["groups"])
                cursor = page["cursor"]
                if not cursor:
                    return rows
            raise AssertionError("no page is the last")

        assert sorted(await all_of(state="parked")) == sorted(groups)
        assert await all_of(state="retrying") == ["r"]
        assert await all_of(state="redriving") == []
        assert set(await all_of()) == groups | {"r"}
        assert await client.refused("GET", "/groups?cursor=7.f1.1") == (400, "input.invalid")
        assert await client.refused("GET", "/groups?cursor=x") == (400, "input.invalid")
        assert await client.refused("GET", "/groups?state=clean") == (400, "input.invalid")
        assert await client.refused("GET", "/groups?limit=0") == (400, "input.invalid")


async def test_dead_letters_are_found_by_group_cause_and_time_with_their_payload(
    client: Client,
) -> None:
    async with FakeEndpoint(plan=[Told(NEVER, body=b"never"), 401]) as endpoint:
        await client.create(endpoint.url)
        await client.produce("a-0")
        await client.parked("a")
        await client.produce("b-0", "b-1", "c-0")
        for group in "bc":
            await client.parked(group)
        async with asyncio.timeout(10):
            while (await client.of("GET", "/group", group="b"))["dead"] < 2:
                await asyncio.sleep(0.02)

        async def ids(**query: object) -> list[str]:
            page = await client.of("GET", "/dead-letters", **query)
            assert not page["cursor"]
            return sorted(each["id"] for each in page["dead_letters"])

        assert await ids() == ["a-0", "b-0", "c-0"], "heads alone"
        assert await ids(group="b") == ["b-0", "b-1"]
        assert await ids(cause="401") == ["b-0", "c-0"]
        assert await ids(cause="nothing like it") == []
        failed = (await client.of("GET", "/group", group="a"))["failed_ms"]
        assert await ids(failed_before=failed) == []
        assert "a-0" not in await ids(failed_after=failed + 1)
        assert await ids(failed_after=failed) == ["a-0", "b-0", "c-0"]

        (letter,) = (await client.of("GET", "/dead-letters", group="a"))["dead_letters"]
        assert (letter["state"], letter["behind"], letter["message"]) == ("parked", 0, None)
        (letter,) = (await client.of("GET", "/dead-letters", group="a", payload="true"))[
            "dead_letters"
        ]
        assert letter["message"]["data"] == {"id": "a-0"}
        assert await client.refused("GET", "/dead-letters?failed_after=-1") == (
            400,
            "input.invalid",
        )


async def test_dead_letters_come_by_pages_over_all_shards(client: Client) -> None:
    async with FakeEndpoint(plan=[NEVER]) as endpoint:
        await client.create(endpoint.url, options={"poison": "skip"})
        ids = [f"g{n}-0" for n in range(10)]
        await client.produce(*ids)
        async with asyncio.timeout(10):
            while (await client.of("GET", "/shards"))["dead"] < 10:
                await asyncio.sleep(0.02)
        seen: list[str] = []
        cursor = ""
        for _ in range(20):
            page = await client.of("GET", "/dead-letters", limit=3, cursor=cursor)
            assert len(page["dead_letters"]) <= 3
            seen += (each["id"] for each in page["dead_letters"])
            cursor = page["cursor"]
            if not cursor:
                break
        assert sorted(seen) == ids


# -- Operations -------------------------------------------------------------------------------


async def test_a_redrive_counts_first_and_then_delivers_in_order(client: Client) -> None:
    async with FakeEndpoint(plan=[NEVER]) as endpoint:
        await client.create(endpoint.url)
        await client.produce("g-0", "g-1", "g-2")
        await client.parked("g")
        async with asyncio.timeout(10):
            while (await client.of("GET", "/group", group="g"))["dead"] < 3:
                await asyncio.sleep(0.02)
        counted = await client.of("POST", "/redrive", {"group": "g", "dry_run": True})
        assert (counted["id"], counted["count"], counted["kind"]) == ("", 3, "redrive")
        assert counted["asked"] == {"group": "g", "dry_run": True}
        assert counted["sample"][0]["id"] == "g-0"
        assert (await client.of("GET", "/operations"))["operations"] == []

        endpoint.plan, before = [200], len(endpoint.received)
        begun = await client.of("POST", "/redrive", {"group": "g"})
        done = await client.ended(begun["id"])
        assert (done["count"], done["progress"]["settled"], done["progress"]["open"]) == (3, 3, 0)
        told = [each.headers["waystation-id"] for each in endpoint.received[before:]]
        assert told == ["g-0", "g-1", "g-2"]
        (row,) = (await client.of("GET", "/operations"))["operations"]
        assert row == done
        for verb in ("pause", "resume", "cancel"):
            path = f"/operations/{begun['id']}/{verb}"
            assert await client.refused("POST", path) == (409, "subscription.operation-ended")


async def test_an_operation_is_paused_resumed_and_cancelled(client: Client) -> None:
    async with FakeEndpoint(plan=[NEVER]) as endpoint:
        await client.create(endpoint.url, partitions=1)
        await client.produce(*(f"g{n}-0" for n in range(5)))
        async with asyncio.timeout(10):
            while (await client.of("GET", "/shards"))["parked"] < 5:
                await asyncio.sleep(0.02)
        endpoint.plan = [Told(hang=True)]
        begun = await client.of("POST", "/redrive", {"rate": 0.001})
        path = f"/operations/{begun['id']}"
        assert (await client.of("POST", f"{path}/pause"))["state"] == "paused"
        assert (await client.of("POST", f"{path}/resume"))["state"] == "begun"
        assert (await client.of("POST", f"{path}/cancel"))["state"] == "cancelled"
        found = await client.of("GET", path, wait="10s")
        assert (found["state"], found["asked"]) == ("cancelled", {"rate": 0.001})


async def test_a_skip_and_a_purge_and_a_reset(client: Client) -> None:
    async with FakeEndpoint(plan=[NEVER]) as endpoint:
        await client.create(endpoint.url)
        await client.produce("g-0", "g-1")
        await client.parked("g")
        assert (await client.of("POST", "/skip", {"group": "g"}))["state"] == "done"
        await client.parked("g")
        purged = await client.of("POST", "/purge", {"group": "g"})
        assert (purged["state"], purged["count"]) == ("done", 1)
        endpoint.plan, before = [200], len(endpoint.received)
        reset = await client.of("POST", "/reset", {"to": "beginning"})
        assert (reset["state"], reset["asked"]) == ("done", {"to": "beginning"})
        again = (await endpoint.until(before + 2))[before:]
        assert [each.headers["waystation-id"] for each in again] == ["g-0", "g-1"]
        assert all(each.headers["webhook-id"].split(":")[1] == "2" for each in again)


@pytest.mark.parametrize(
    ("verb", "body", "status", "code"),
    [
        ("redrive", {"group": "g"}, 409, "subscription.not-parked"),
        ("redrive", {"message": "g-0"}, 409, "subscription.not-parked"),
        ("redrive", {"group": ""}, 400, "input.invalid"),
        ("redrive", {"rate": 0}, 400, "input.invalid"),
        ("redrive", {"group": "g", "failed_after": 1}, 400, "input.invalid"),
        ("redrive", {"failed_after": 2, "failed_before": 1}, 400, "input.invalid"),
        ("skip", {"group": "g"}, 409, "subscription.group-clean"),
        ("skip", {}, 400, "input.invalid"),
        ("purge", {"group": "g"}, 409, "subscription.group-clean"),
        ("purge", {"everything": True}, 400, "input.invalid"),
        ("reset", {}, 400, "input.invalid"),
        ("reset", {"to": 9_000_000_000_000}, 400, "subscription.reset-out-of-range"),
    ],
)
async def test_an_operation_that_cannot_be_is_refused_and_not_entered(
    client: Client, verb: str, body: dict[str, Any], status: int, code: str
) -> None:
    await client.create("channel:news")
    assert await client.refused("POST", f"/{verb}", body) == (status, code)
    assert (await client.of("GET", "/operations"))["operations"] == []


async def test_what_is_not_there_is_not_found(client: Client) -> None:
    unknown = (404, "subscription.not-found")
    for path in ("", "/shards", "/groups", "/dead-letters", "/why", "/operations", "/operations/x"):
        assert await client.refused("GET", path) == unknown
    assert await client.refused("GET", "/group?group=g") == unknown
    assert await client.refused("POST", "/redrive", {}) == unknown
    assert await client.refused("POST", "/test") == unknown
    await client.create("channel:news")
    for verb in ("", "/pause", "/resume", "/cancel"):
        method = "POST" if verb else "GET"
        refused = await client.refused(method, f"/operations/{quote('no such one')}{verb}")
        assert refused == (404, "subscription.operation-not-found")


async def test_no_project_sees_the_subscriptions_of_another(guarded: Guarded) -> None:
    ours = Client(guarded.url, key=guarded.keys.admin)
    await ours.create("channel:news")
    theirs = Client(guarded.url, key=guarded.keys.shop_admin, name=ours.name)
    assert await theirs.refused("GET") == (404, "subscription.not-found")
    assert await theirs.refused("GET", "/why") == (404, "subscription.not-found")
    assert theirs.ask("GET").json()["subscriptions"] == []
    await theirs.create("channel:news")
    assert theirs.ask("DELETE", f"/{theirs.name}").status == 204
    assert (await ours.of("GET"))["state"] == "active"


def test_every_error_of_subscriptions_has_a_status_of_its_own() -> None:
    kinds = [
        each
        for each in vars(errors).values()
        if isinstance(each, type)
        and issubclass(each, WaystationError)
        and each.code.startswith(("subscription.", "dead-letter.", "operation."))
    ]
    for kind in kinds:
        over_http = kind is not errors.WaitTimeoutError
        assert (status_of(kind()) in (400, 404, 409)) is over_http, kind
