"""`/v1/pools` of a whole station: definitions, producers, workers, and what operators see."""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, urlencode

import pytest
from msgspec.structs import replace

from tests.api.conftest import Guarded
from tests.helpers.http import Answer, ask, async_ask, async_wire, request_bytes
from tests.helpers.server import problem
from waystation import errors
from waystation.api.problems import status_of
from waystation.config import Config, HttpConfig
from waystation.errors import WaystationError
from waystation.testing import serving

_numbers = itertools.count(1)
BATCH = {"content-type": "application/vnd.waystation.batch+json"}


@dataclass
class PoolClient:
    """Asks about one pool of its own."""

    url: str
    key: str = ""
    name: str = field(default_factory=lambda: f"pool-{next(_numbers)}")
    sessions: dict[str, int] = field(default_factory=dict)
    calls: int = 0

    def raw(self, method: str, path: str, body: bytes | None = None, **headers: str) -> Answer:
        told = {name.replace("_", "-"): value for name, value in headers.items()}
        return ask(self.url, method, f"/v1/pools{path}", body, told, key=self.key)

    def ask(self, method: str, path: str = "", body: Any = None, **query: object) -> Answer:
        asked = f"/{self.name}{path}" + (f"?{urlencode(query)}" if query else "")
        given = None if body is None else json.dumps(body).encode()
        return self.raw(method, asked, given)

    def of(self, method: str, path: str = "", body: Any = None, **query: object) -> Any:
        """An answer that is no problem."""
        answer = self.ask(method, path, body, **query)
        assert answer.status < 300, answer
        return answer.json() if answer.body else None

    def refused(self, *request: Any, **query: object) -> tuple[int, str]:
        return problem(self.ask(*request, **query))

    def create(self, **options: Any) -> Any:
        body = json.dumps({"name": self.name, "options": options}).encode()
        answer = self.raw("POST", "", body)
        assert answer.status == 201, answer
        return answer.json()

    def send(self, key: str, data: bytes = b"{}", **headers: str) -> Any:
        path = f"/{self.name}/messages?key={quote(key)}"
        answer = self.raw("POST", path, data, content_type="application/json", **headers)
        assert answer.status == 200, answer
        return answer.json()

    def register(self, uid: str = "w-1", nonce: str = "n") -> int:
        found = self.of("PUT", f"/workers/{uid}", {"nonce": nonce})
        self.sessions[uid] = found["session"]
        return int(found["session"])

    def says(self, uid: str, verb: str, body: Any = None, **query: object) -> Any:
        told = {"session": self.sessions[uid], **(body or {})}
        return self.of("POST", f"/workers/{uid}/{verb}", told, **query)

    def take(self, uid: str = "w-1", token: str = "", **query: object) -> list[dict[str, Any]]:
        self.calls += 1
        items = self.says(uid, "take", {"token": token or f"t-{self.calls}"}, **query)["items"]
        assert isinstance(items, list)
        return items


@pytest.fixture
def pool(open_url: str) -> PoolClient:
    client = PoolClient(open_url)
    client.create()
    return client


def test_every_error_of_pools_has_a_status() -> None:
    kinds = [
        each
        for each in vars(errors).values()
        if isinstance(each, type) and issubclass(each, WaystationError)
    ]
    ours = [each for each in kinds if each.code.startswith(("pool.", "worker."))]
    assert len(ours) > 5
    for kind in ours:
        assert status_of(kind("no")) in (400, 404, 409, 503), kind


# -- Definitions -----------------------------------------------------------------------------


def test_a_pool_is_created_shown_changed_listed_and_deleted(open_url: str) -> None:
    pool = PoolClient(open_url)
    made = pool.create(assignment="least_loaded")
    assert (made["name"], made["version"]) == (pool.name, 1)
    assert made["options"]["assignment"] == "least_loaded"
    assert pool.of("GET") == made
    options = {**made["options"], "assignment": "consistent_hash", "attempts": 3}
    changed = pool.of("PUT", "", {"version": 1, "options": options})
    assert (changed["version"], changed["options"]["attempts"]) == (2, 3)
    assert pool.refused("PUT", "", {"version": 1, "options": options}) == (409, "conflict")
    names = [each["name"] for each in pool.raw("GET", "?limit=1000").json()["pools"]]
    assert pool.name in names
    assert names == sorted(names)
    assert pool.ask("DELETE").status == 204
    assert pool.refused("GET") == (404, "pool.not-found")
    assert pool.refused("DELETE") == (404, "pool.not-found")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"assignment": "first"}, "assignment"),
        ({"stale_seconds": 0}, "stale_seconds"),
        ({"attempts": 0}, "attempts"),
        ({"keys_max": 2**20}, "keys_max"),
        ({"first_seconds": 10, "max_seconds": 1}, "first wait"),
        ({"color": "red"}, "color"),
        ({"attempts": "3"}, "attempts"),
    ],
)
def test_bad_options_are_refused_by_name(open_url: str, options: Any, words: str) -> None:
    pool = PoolClient(open_url)
    body = json.dumps({"name": pool.name, "options": options}).encode()
    answer = pool.raw("POST", "", body)
    assert answer.status == 400
    assert words in answer.json()["detail"]
    assert pool.refused("GET") == (404, "pool.not-found")


def test_a_bad_name_or_body_is_refused(open_url: str) -> None:
    pool = PoolClient(open_url)
    for body in (b"", b"{", b"[]", b'{"name": "Bad Name"}', b'{"name": "a", "what": 1}', b"\xff"):
        assert pool.raw("POST", "", body).status == 400, body
    pool.create()
    assert problem(pool.raw("POST", "", json.dumps({"name": pool.name}).encode()))[0] == 409


# -- Producers -------------------------------------------------------------------------------


def test_a_message_keeps_its_bytes_its_type_and_its_own_headers(pool: PoolClient) -> None:
    pool.register()
    data = b'{"n":  1}'
    sent = pool.send("did:example:1#key,2", data, x_tenant="a", waystation_id="m-1")
    assert (sent["id"], sent["outcome"], sent["owner"]) == ("m-1", "added", "w-1")
    assert pool.send("did:example:1#key,2", data, waystation_id="m-1")["outcome"] == "duplicate"
    (taken,) = pool.take()
    assert (taken["key"], taken["number"], taken["tries"]) == ("did:example:1#key,2", 1, 0)
    message = taken["message"]
    assert (message["id"], message["group"], message["data"]) == ("m-1", taken["key"], {"n": 1})
    assert message["headers"] == [["x-tenant", "a"]]
    pool.says("w-1", "ack", {"items": [taken]})
    # Bytes that are nothing else come as they went.
    path = f"/{pool.name}/messages"
    answer = pool.raw("POST", path, b"\xff\x00", waystation_key="k")
    assert answer.status == 200
    (raw,) = pool.take()
    assert base64.b64decode(raw["message"]["base64"]) == b"\xff\x00"


def test_a_batch_is_enqueued_in_its_order_or_refused_as_a_whole(pool: PoolClient) -> None:
    pool.register()
    path = f"/{pool.name}/messages"
    messages = [{"key": "k", "id": f"m-{n}", "data": n} for n in range(3)]
    messages += [{"key": "l", "text": "ü"}, {"key": "m", "base64": "AAE="}]
    answer = pool.raw("POST", path, json.dumps({"messages": messages}).encode(), **BATCH)
    results = answer.json()["results"]
    assert [each["outcome"] for each in results] == ["added"] * 5
    assert [each["pending"] for each in results] == [1, 2, 3, 1, 1]
    bad: list[tuple[Any, str]] = [
        ([], "messages"),
        ([{"data": 1}], "key"),
        ([{"key": "k", "data": 1}, {"key": "", "data": 2}], "messages[1].key"),
        ([{"key": "k", "data": 1, "text": "x"}], "messages[0].data"),
        ([{"key": "k", "headers": [["host", "x"]]}], "messages[0].headers"),
        ([{"key": "k", "id": "\n"}], "messages[0].id"),
        ([{"key": "k"}] * 101, "messages"),
    ]
    for given, where in bad:
        refused = pool.raw("POST", path, json.dumps({"messages": given}).encode(), **BATCH)
        assert refused.status in (400, 413), given
        assert where in str(refused.json()), refused.json()
    assert pool.of("GET", "/workers")["pending"] == 5


def test_send_waiting_for_agents_that_cannot_answer_is_refused(open_url: str) -> None:
    pool = PoolClient(open_url)
    pool.create(mirror=True)
    path = f"/{pool.name}/messages?key=k"
    refused = pool.raw("POST", path, b"1", waystation_wait="10s")
    assert problem(refused) == (400, "pool.cannot-answer")
    assert pool.of("GET", "/workers")["pending"] == 0
    pool.send("k")
    pool.of("DELETE")


def test_what_names_no_recipient_or_two_is_refused(pool: PoolClient) -> None:
    path = f"/{pool.name}/messages"
    assert problem(pool.raw("POST", path, b"1"))[0] == 400
    assert problem(pool.raw("POST", f"{path}?key=a", b"1", waystation_key="b"))[0] == 400
    long = "k" * 4097
    assert problem(pool.raw("POST", f"{path}?key={long}", b"1")) == (400, "pool.key-invalid")
    assert problem(pool.raw("POST", f"{path}?key=a%0Ab", b"1")) == (400, "pool.key-invalid")
    assert problem(pool.raw("POST", f"{path}?key=a", b"1", waystation_what="b"))[0] == 400
    assert problem(pool.raw("POST", f"{path}?key=a", b"1", waystation_wait="soon"))[0] == 400
    other = PoolClient(pool.url)
    assert problem(other.raw("POST", f"/{other.name}/messages?key=a", b"1")) == (
        404,
        "pool.not-found",
    )


def test_a_full_pool_says_so_and_takes_nothing(open_url: str) -> None:
    pool = PoolClient(open_url)
    pool.create(messages_max=1)
    pool.send("k")
    answer = pool.raw("POST", f"/{pool.name}/messages?key=k", b"1")
    assert problem(answer) == (503, "pool.full")
    assert answer.header("retry-after")
    body = json.dumps({"messages": [{"key": "k", "data": 1}]}).encode()
    assert problem(pool.raw("POST", f"/{pool.name}/messages", body, **BATCH)) == (503, "pool.full")


# -- Workers ---------------------------------------------------------------------------------


def test_messages_of_a_key_come_one_at_a_time_and_in_order(pool: PoolClient) -> None:
    pool.register()
    for n in range(3):
        pool.send("k", str(n).encode())
    pool.send("l", b"9")
    taken = pool.take()
    assert [each["message"]["data"] for each in taken] == [0, 9]
    assert pool.take() == [], "the next comes when this is settled"
    results = pool.says("w-1", "ack", {"items": taken, "next": True})["results"]
    assert [each["outcome"] for each in results] == ["done", "done"]
    following = results[0]["next"]
    assert following["message"]["data"] == 1
    assert results[1]["next"] is None
    # The reply was lost: said again, it is known, with the same next one.
    again = pool.says("w-1", "ack", {"items": taken[:1], "next": True})["results"][0]
    assert (again["outcome"], again["next"]["number"]) == ("known", following["number"])
    pool.says("w-1", "nack", {"items": [{**following, "verdict": "release"}]})
    assert [each["message"]["data"] for each in pool.take()] == [1]


def test_a_take_that_is_said_again_brings_the_same(pool: PoolClient) -> None:
    pool.register()
    pool.send("k")
    assert pool.take(token="t") == pool.take(token="t") != []


def test_a_nack_waits_dies_or_gives_back(open_url: str) -> None:
    pool = PoolClient(open_url)
    pool.create(attempts=2, first_seconds=600, max_seconds=600)
    pool.register()
    pool.send("k")
    (taken,) = pool.take()
    assert pool.says("w-1", "nack", {"items": [{**taken, "wait_seconds": 0}]}) == {
        "results": [{"outcome": "done"}]
    }
    (again,) = pool.take()
    assert (again["number"], again["tries"]) == (taken["number"], 1)
    # Told twice: known. Without a wait of its own it would be the pool's; tries are used up.
    told = {"items": [{**again, "cause": "no such person"}]}
    assert pool.says("w-1", "nack", told)["results"] == [{"outcome": "dead"}]
    assert pool.says("w-1", "nack", told)["results"] == [{"outcome": "known"}]
    (letter,) = pool.of("GET", "/dead-letters")["dead_letters"]
    assert (letter["key"], letter["cause"], letter["tries"]) == ("k", "no such person", 2)
    pool.send("k")
    (third,) = pool.take()
    pool.says("w-1", "nack", {"items": [third]})
    assert pool.take() == []
    reason = pool.of("GET", "/why", key="k")
    assert reason["code"] == "delayed"
    assert reason["facts"]["tries"] == 1


@pytest.mark.parametrize(
    ("verb", "body"),
    [
        ("take", {"session": 1}),
        ("take", {"session": 0, "token": "t"}),
        ("take", {"session": 1, "token": "No Name"}),
        ("ack", {"session": 1, "items": []}),
        ("ack", {"session": 1, "items": [{"key": "k"}]}),
        ("nack", {"session": 1, "items": [{**dict.fromkeys(("epoch", "number"), 1)}]}),
        ("beat", {}),
        ("renew", {"session": 1, "items": "all"}),
        ("answer", {"session": 1, "answer_to": "Not A Name"}),
    ],
)
def test_a_worker_that_says_nonsense_is_refused(pool: PoolClient, verb: str, body: Any) -> None:
    pool.register()
    assert pool.refused("POST", f"/workers/w-1/{verb}", body)[0] == 400
    for garbage in (b"", b"{", b"\xff", b"[" * 100_000):
        answer = pool.raw("POST", f"/{pool.name}/workers/w-1/{verb}", garbage)
        assert problem(answer)[0] == 400, garbage[:10]


def test_names_of_workers_and_bounds_are_checked(pool: PoolClient) -> None:
    assert pool.refused("PUT", "/workers/Bad", {"nonce": "n"})[0] == 400
    assert pool.refused("PUT", "/workers/w", {"nonce": "Bad Nonce"})[0] == 400
    pool.register()
    for most in ("0", "101", "x", "-1"):
        said = {"session": pool.sessions["w-1"], "token": "t"}
        assert pool.refused("POST", "/workers/w-1/take", said, max=most)[0] == 400
    said = {"session": 1, "token": "t"}
    assert pool.refused("POST", "/workers/nobody/take", said) == (404, "pool.worker-unknown")


def test_another_process_under_the_same_name_takes_its_place(pool: PoolClient) -> None:
    first = pool.register(nonce="one")
    assert pool.register(nonce="one") == first
    pool.send("k")
    (taken,) = pool.take()
    assert pool.register(nonce="two") != first
    former = {"session": first, "token": "t"}
    assert pool.refused("POST", "/workers/w-1/take", former) == (404, "pool.worker-unknown")
    (again,) = pool.take()
    assert (again["number"], again["crashes"]) == (taken["number"], 1)
    lost = pool.says("w-1", "ack", {"items": [taken]})["results"]
    assert lost == [{"outcome": "lost", "next": None}]


def test_a_worker_drains_and_leaves_and_its_keys_go_on_in_order(pool: PoolClient) -> None:
    pool.register("w-1")
    for n in range(2):
        pool.send("k", str(n).encode())
    pool.send("l")
    (taken,) = pool.take("w-1", max=1)
    pool.register("w-2")
    assert pool.says("w-1", "drain") == {"taken": 1}
    state = pool.says("w-1", "take", {"token": "x"}, wait="20s")
    assert state == {"state": "draining", "items": []}, "it is told at once"
    moved = {each["key"]: each["owner"] for each in pool.of("GET", "/map")["keys"]}
    assert moved == {"k": "w-1", "l": "w-2"}
    pool.says("w-1", "ack", {"items": [taken], "next": True})
    found = {each["key"]: each["message"]["data"] for each in pool.take("w-2")}
    assert found == {"k": 1, "l": {}}
    assert pool.says("w-1", "leave") == {}
    assert pool.says("w-1", "leave") == {}, "as good as done"
    (left,) = pool.of("GET", "/workers")["workers"]
    assert (left["uid"], left["keys"], left["taken"]) == ("w-2", 2, 2)


async def test_a_worker_that_waits_is_given_what_comes(settings: Config) -> None:
    async with serving(settings) as station:
        pool = PoolClient(station.url)
        await asyncio.to_thread(pool.create)
        await asyncio.to_thread(pool.register)
        waiting = asyncio.create_task(asyncio.to_thread(pool.take, wait="20s"))
        # It looks, and waits: the hint wakes it.
        await asyncio.sleep(0.1)
        assert not waiting.done()
        begun = asyncio.get_running_loop().time()
        await asyncio.to_thread(pool.send, "k")
        (taken,) = await waiting
        assert taken["key"] == "k"
        assert asyncio.get_running_loop().time() - begun < 5


async def test_a_worker_that_waits_stays_live_and_gets_new_keys(settings: Config) -> None:
    async with serving(settings) as station:
        pool = PoolClient(station.url)
        await asyncio.to_thread(pool.create, stale_seconds=2)
        await asyncio.to_thread(pool.register)
        waiting = asyncio.create_task(asyncio.to_thread(pool.take, wait="30s"))
        await asyncio.sleep(5)
        sent = await asyncio.to_thread(pool.send, "k")
        assert sent["owner"] == "w-1", "twice its patience later it is no stranger"
        assert len(await waiting) == 1


async def test_a_server_that_stops_keeps_no_worker_waiting(settings: Config) -> None:
    settings = replace(settings, http=HttpConfig(port=0, grace_seconds=30))
    async with serving(settings) as station:
        pool = PoolClient(station.url)
        await asyncio.to_thread(pool.create)
        await asyncio.to_thread(pool.register)
        waiting = asyncio.create_task(asyncio.to_thread(pool.take, wait="20s"))
        await asyncio.sleep(0.2)
        async with asyncio.timeout(10):
            await station.server.stop()
            assert await waiting == []


async def test_what_comes_after_a_worker_hung_up_is_not_taken_for_it(settings: Config) -> None:
    async with serving(settings) as station:
        pool = PoolClient(station.url)
        await asyncio.to_thread(pool.create)
        session = await asyncio.to_thread(pool.register)
        said = json.dumps({"session": session, "token": "gone"}).encode()
        path = f"/v1/pools/{pool.name}/workers/w-1/take?wait=20s"
        async with async_wire(station.url) as wire:
            wire.send(request_bytes("POST", path, said))
            await asyncio.sleep(0.2)
            wire.vanish()
            await asyncio.sleep(0.2)
        await asyncio.to_thread(pool.send, "k")
        taken = await asyncio.to_thread(pool.take)
        assert [each["key"] for each in taken] == ["k"]


# -- Answers ---------------------------------------------------------------------------------


async def test_who_waits_for_an_answer_gets_it_also_when_asked_again(settings: Config) -> None:
    async with serving(settings) as station:
        pool = PoolClient(station.url)
        await asyncio.to_thread(pool.create)
        await asyncio.to_thread(pool.register)
        wanted = {"waystation_id": "m-1", "waystation_wait": "20s"}
        asking = asyncio.create_task(asyncio.to_thread(pool.send, "k", b"{}", **wanted))
        (taken,) = await asyncio.to_thread(pool.take, wait="20s")
        answer = {"answer_to": taken["answer_to"], "data": {"fine": True}}
        assert await asyncio.to_thread(pool.says, "w-1", "answer", answer) == {}
        assert (await asking)["answer"] == {"data": {"fine": True}, "content_type": _JSON}
        # The reply was lost: the same id waits for the same answer.
        again = await asyncio.to_thread(pool.send, "k", b"{}", **wanted)
        assert (again["outcome"], again["answer"]["data"]) == ("duplicate", {"fine": True})
        wanted = {"waystation_id": "m-2", "waystation_wait": "100ms"}
        none = await asyncio.to_thread(pool.send, "k", b"{}", **wanted)
        assert (none["outcome"], none["answer"]) == ("added", None)


_JSON = "application/json"


# -- What operators see and do ---------------------------------------------------------------


def test_the_map_shows_keys_with_their_workers_and_the_load_of_each(pool: PoolClient) -> None:
    for uid in ("w-1", "w-2"):
        pool.register(uid)
    for n in range(4):
        pool.send(f"k-{n}")
    pool.send("k-0")
    assert pool.of("PUT", "/keys", {"uid": "w-2"}, key="idle")["owner"] == "w-2"
    found = {each["key"]: each for each in pool.of("GET", "/map")["keys"]}
    assert {each["owner"] for each in found.values()} == {"w-1", "w-2"}
    assert (found["k-0"]["pending"], found["k-0"]["state"]) == (2, "pending")
    assert (found["idle"]["state"], found["idle"]["reason"]) == ("idle", "asked")
    of_one = pool.of("GET", "/map", worker="w-2")["keys"]
    assert {each["key"] for each in of_one} == {
        key for key, each in found.items() if each["owner"] == "w-2"
    }
    look = pool.of("GET", "/workers")
    assert (look["keys"], look["pending"], look["waiting"], look["dead"]) == (5, 5, 0, 0)
    loads = {each["uid"]: (each["keys"], each["pending"]) for each in look["workers"]}
    assert sum(keys for keys, _ in loads.values()) == 5
    assert sum(pending for _, pending in loads.values()) == 5
    assert {each["state"] for each in look["workers"]} == {"live"}
    assert pool.ask("DELETE", "/keys", key="idle").status == 204
    assert pool.refused("DELETE", "/keys", key="k-0") == (409, "pool.key-busy")
    assert pool.refused("GET", "/map", cursor="x")[0] == 400
    assert pool.refused("GET", "/map", limit=0)[0] == 400


def test_a_key_is_moved_by_hand_unless_its_message_is_taken(pool: PoolClient) -> None:
    pool.register("w-1")
    pool.send("k")
    pool.register("w-2")
    assert pool.of("PUT", "/keys", {"uid": "w-2"}, key="k") == {
        "key": "k",
        "owner": "w-2",
        "epoch": 2,
    }
    pool.take("w-2")
    assert pool.refused("PUT", "/keys", {"uid": "w-1"}, key="k") == (409, "pool.key-taken")
    assert pool.refused("PUT", "/keys", {"uid": "none"}, key="k") == (404, "pool.worker-unknown")


def test_why_tells_of_a_key_what_hinders_it(pool: PoolClient) -> None:
    def code(key: str = "k") -> str:
        reason = pool.of("GET", "/why", key=key)
        assert reason["text"].endswith(".")
        return str(reason["code"])

    assert code() == "unknown"
    pool.send("k")
    assert code() == "no_worker"
    pool.register()
    assert code() == "ready"
    reason = pool.of("GET", "/why", key="k")
    assert (reason["facts"]["owner"], reason["facts"]["reason"]) == ("w-1", "adopted")
    assert 0 < reason["facts"]["stale_in_ms"] <= 15_000
    (taken,) = pool.take()
    assert code() == "taken"
    pool.says("w-1", "drain")
    assert code() == "draining"
    pool.says("w-1", "ack", {"items": [taken]})
    assert code() == "idle"
    assert pool.refused("GET", "/why")[0] == 400


def test_an_operator_drains_and_evicts_and_a_worker_cannot_speak_for_another(
    guarded: Guarded,
) -> None:
    admin = PoolClient(guarded.url, guarded.keys.admin)
    admin.create()
    writer = PoolClient(guarded.url, guarded.keys.write, admin.name)
    reader = PoolClient(guarded.url, guarded.keys.read, admin.name)
    assert writer.register() > 0
    writer.send("k")
    assert reader.of("GET", "/map")["keys"]
    assert reader.of("GET", "/why", key="k")["code"] == "ready"
    for method, path, body in (
        ("POST", "/messages?key=k", {}),
        ("PUT", "/workers/x", {"nonce": "n"}),
        ("PUT", "/keys?key=k", {}),
    ):
        assert reader.refused(method, path, body)[0] == 403
    for method, path, body in (
        ("POST", "/workers/w-1/drain", {}),
        ("POST", "/workers/w-1/leave", {}),
        ("POST", "/workers/w-1/evict", None),
        ("POST", "/dead-letters/redrive", {"all": True}),
        ("POST", "/dead-letters/purge", {"all": True}),
        ("PUT", "", {"version": 1, "options": {}}),
        ("DELETE", "", None),
    ):
        assert writer.refused(method, path, body)[0] == 403, path
    writer.register("w-2")
    assert admin.of("POST", "/workers/w-1/drain", {}) == {"taken": 0}
    assert reader.of("GET", "/why", key="k")["facts"]["owner"] == "w-2"
    assert admin.of("POST", "/workers/w-2/evict") == {"count": 1}
    said = {"session": writer.sessions["w-2"]}
    assert writer.refused("POST", "/workers/w-2/beat", said) == (409, "pool.worker-evicted")
    assert admin.refused("POST", "/workers/none/evict") == (404, "pool.worker-unknown")
    stranger = PoolClient(guarded.url, guarded.keys.shop_admin, admin.name)
    assert stranger.refused("GET") == (404, "pool.not-found")
    assert admin.ask("DELETE").status == 204


def test_dead_letters_are_sent_again_and_purged_by_number_or_all(open_url: str) -> None:
    pool = PoolClient(open_url)
    pool.create(attempts=1)
    pool.register()
    for key in ("a", "b", "c"):
        pool.send(key, json.dumps(key).encode())
    pool.says("w-1", "nack", {"items": [{**each, "cause": "no"} for each in pool.take()]})
    letters = pool.of("GET", "/dead-letters")["dead_letters"]
    assert sorted(each["message"]["data"] for each in letters) == ["a", "b", "c"]
    one = letters[0]["number"]
    assert pool.refused("POST", "/dead-letters/redrive", {})[0] == 400
    assert pool.refused("POST", "/dead-letters/purge", {"all": True, "numbers": [1]})[0] == 400
    assert pool.of("POST", "/dead-letters/redrive", {"numbers": [one]}) == {"count": 1}
    assert pool.of("POST", "/dead-letters/redrive", {"numbers": [one]}) == {"count": 0}
    assert len(pool.take()) == 1
    page = pool.of("GET", "/dead-letters", limit=1)
    rest = pool.of("GET", "/dead-letters", cursor=page["cursor"])
    assert len(page["dead_letters"]) == len(rest["dead_letters"]) == 1
    assert pool.of("POST", "/dead-letters/purge", {"all": True}) == {"count": 2}
    assert pool.of("GET", "/dead-letters")["dead_letters"] == []


async def test_a_pool_is_counted_in_metrics(settings: Config) -> None:
    async with serving(settings) as station:
        pool = PoolClient(station.url)
        await asyncio.to_thread(pool.create)
        await asyncio.to_thread(pool.register)
        await asyncio.to_thread(pool.send, "k")
        await asyncio.to_thread(pool.send, "l")
        (taken, *_) = await asyncio.to_thread(pool.take)
        await asyncio.to_thread(pool.says, "w-1", "ack", {"items": [taken]})
        await station.node.pools.upkeep.mend()
        text = (await async_ask(station.url, "GET", "/metrics")).body.decode()
        label = f'pool="default.{pool.name}"'
        assert f'waystation_pool_enqueued_total{{outcome="added",{label}}} 2' in text
        assert f'waystation_pool_acked_total{{outcome="done",{label}}} 1' in text
        assert f"waystation_pool_pending{{{label}}} 1.0" in text
        assert f'waystation_pool_workers{{{label},state="live"}} 1.0' in text
        assert "w-1" not in text


def test_pool_batch_with_a_lone_surrogate_keeps_its_bytes(pool: PoolClient) -> None:
    data = b'{"t":"\\ud83d"}'

    batch = b'{"messages":[{"key":"k","data":%b}]}' % data
    answer = pool.raw("POST", f"/{pool.name}/messages", batch, **BATCH)

    assert answer.status == 200, answer
    pool.register()
    (item,) = pool.take()
    assert item["message"]["text"].encode() == data
