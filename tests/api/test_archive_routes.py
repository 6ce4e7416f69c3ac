"""What has left the store, as clients and operators reach it over HTTP."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import quote, urlencode

import pytest
from msgspec.structs import replace

from tests.helpers.http import Answer, ask
from tests.helpers.server import Keys, background_station, make_keys
from tests.helpers.store_faults import store_at
from waystation import App, Wait
from waystation.config import AuthConfig, Config, HttpConfig, TransactionConfig
from waystation.store.client import Store
from waystation.testing.station import Serving
from waystation.transactions import names

_T = TypeVar("_T")
_numbers = itertools.count(1)
NOBODY = "tx-0000" + "f" * 36
#: What has ended, or sleeps, leaves the store at once.
AT_ONCE = TransactionConfig(
    cells=1, archive_delay_seconds=0.01, archive_pause_idle_seconds=0.02, cache_seconds=0.01
)


def app_of_tests() -> App:
    app = App()

    @app.step("shop/approve")
    async def approve(ctx: Any, given: Any) -> Any:
        return given if ctx.switch("approved") else Wait("approved", at_most="2d")

    app.pipeline("at-once", ["util/checkpoint"])
    app.pipeline("approval", ["shop/approve"])
    return app


@dataclass(frozen=True)
class Client:
    """Asks with one key."""

    running: Serving
    key: str

    def ask(self, method: str, path: str, content: Any = None) -> Answer:
        body = None if content is None else json.dumps(content).encode()
        return ask(self.running.url, method, path, body, key=self.key)

    def json(self, path: str) -> Any:
        answer = self.ask("GET", path)
        assert answer.status == 200, answer
        return answer.json()

    def started(self, type_: str = "at-once", data: Any = None, **metadata: Any) -> str:
        order = {"type": type_, "data": data, "metadata": metadata}
        answer = self.ask("POST", "/v1/transactions", order)
        assert answer.status == 201, answer
        return str(answer.json()["metadata"]["txId"])

    def listed(self, **query: Any) -> list[Any]:
        found: list[Any] = self.json(f"/v1/transactions?{urlencode(query)}")["transactions"]
        return found

    def why(self, transaction_id: str) -> Any:
        return self.json(f"/v1/why/{transaction_id}")

    def in_store(self, work: Callable[[Store], Awaitable[_T]]) -> _T:
        """Does something in the store behind the station's back."""
        address = self.running.node.opened.store.address

        async def do() -> _T:
            async with store_at(address) as store:
                return await work(store)

        return asyncio.run(do())

    def left_the_store(self, transaction_id: str) -> None:
        """Waits until the archive alone has it."""
        for _ in range(2000):
            if not self.in_store(lambda store: store.call("EXISTS", names.state(transaction_id))):
                return
        raise AssertionError("it is still in the store")


@pytest.fixture(scope="module")
def station(module_store_settings: Config) -> Iterator[tuple[Serving, Keys]]:
    keys = make_keys(module_store_settings.data_dir)
    settings = replace(
        module_store_settings,
        auth=AuthConfig(insecure=False),
        http=HttpConfig(port=0, poll_seconds_max=20),
        transactions=AT_ONCE,
    )
    with background_station(settings, app=app_of_tests()) as running:
        yield running, keys


@pytest.fixture
def client(station: tuple[Serving, Keys]) -> Client:
    return Client(station[0], station[1].admin)


@pytest.fixture
def shop(station: tuple[Serving, Keys]) -> Client:
    return Client(station[0], station[1].shop_admin)


@pytest.fixture
def external_id() -> str:
    return f"order {next(_numbers)}"


def problem(answer: Answer) -> tuple[int, str]:
    assert answer.header("content-type") == "application/problem+json", answer
    return answer.status, answer.json()["code"]


# -- The list of the archive -----------------------------------------------------------------


def test_what_has_ended_is_listed_from_the_archive_newest_first(client: Client) -> None:
    ids = []
    for _ in range(3):
        ids.append(client.started())
        client.left_the_store(ids[-1])
    rows = client.listed(archived="true", limit=3)
    assert [each["id"] for each in rows] == ids[::-1]
    assert {(each["state"], each["status"]) for each in rows} == {("complete", "success")}
    seen, cursor = [], ""
    for _ in range(2):
        query = urlencode({"archived": "true", "limit": 2, "cursor": cursor})
        page = client.json(f"/v1/transactions?{query}")
        seen += [each["id"] for each in page["transactions"]]
        cursor = page["cursor"]
    assert seen[:3] == ids[::-1], "a page goes on where the last one ended"
    assert client.listed(archived="true", since="2090-01-31T12:00:00Z") == []
    assert len(client.listed(archived="true", since="1h")) >= 3
    assert len(client.listed(archived="true", since="1")) >= 3, "milliseconds since 1970"
    assert client.listed(archived="true", status="failed,timeout") == []
    assert client.listed(archived="true", pipeline="other") == []


def test_what_sleeps_in_the_archive_is_listed_as_it_was(client: Client) -> None:
    sleeper = client.started("approval")
    client.left_the_store(sleeper)
    rows = client.listed(archived="true", status="waiting_switch")
    assert sleeper in {each["id"] for each in rows}
    assert sleeper not in {each["id"] for each in client.listed(archived="true")}, "not ended"
    alive = client.listed(state="waiting_switch")
    assert sleeper in {each["id"] for each in alive}, "it belongs to those that wait, too"


def test_a_project_sees_nothing_of_anothers_archive(client: Client, shop: Client) -> None:
    client.left_the_store(client.started())
    assert shop.listed(archived="true") == []


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("archived=yes", "archived"),
        ("archived=true&status=done", "status"),
        ("archived=true&status=", None),
        ("archived=true&state=running", "state"),
        ("archived=true&since=soon", "since"),
        ("archived=true&cursor=1", "cursor"),
        ("archived=true&limit=0", "limit"),
        ("status=failed", "status"),
        ("since=1h", "since"),
        ("external_id=1&archived=true", "external_id"),
    ],
)
def test_what_is_no_question_to_the_archive_is_refused(
    client: Client, query: str, field: str | None
) -> None:
    answer = client.ask("GET", f"/v1/transactions?{query}")
    if field is None:
        assert answer.status == 200
    else:
        assert problem(answer) == (400, "input.invalid")
        assert answer.json()["errors"][0]["field"] == field


# -- By external id --------------------------------------------------------------------------


def test_an_external_id_leads_to_its_transaction_in_the_store_and_in_the_archive(
    client: Client, shop: Client, external_id: str
) -> None:
    transaction_id = client.started("approval", externalId=external_id)
    path = f"/v1/transactions/by-external-id/{quote(external_id, safe='')}"
    assert client.json(path)["metadata"]["txId"] == transaction_id
    client.left_the_store(transaction_id)
    found = client.json(path)["metadata"]
    assert (found["txId"], found["status"]) == (transaction_id, "waiting_switch")
    assert problem(shop.ask("GET", path)) == (404, "transaction.unknown")
    switch = f"/v1/transactions/{transaction_id}/switches/approved"
    assert client.ask("PUT", switch, {"value": True}).json()["outcome"] == "woken"
    assert client.json(f"{path}?wait=15s")["metadata"]["status"] == "success"


def test_an_external_id_that_is_free_again_leads_to_the_newest_that_had_it(
    client: Client, external_id: str
) -> None:
    ids = []
    for _ in range(2):
        ids.append(client.started(externalId=external_id))
        client.left_the_store(ids[-1])
        # Its time of reservation is over.
        key = names.external_id(0, "default", external_id)
        assert client.in_store(lambda store, key=key: store.call("DEL", key)) == 1
    path = f"/v1/transactions/by-external-id/{quote(external_id)}"
    assert client.json(path)["metadata"]["txId"] == ids[1]
    rows = client.listed(external_id=external_id)
    assert [(each["id"], each["status"]) for each in rows] == [(ids[1], "success")]


def test_an_external_id_that_nobody_has_is_unknown_at_once(client: Client) -> None:
    path = "/v1/transactions/by-external-id/nobody?wait=20s"
    assert problem(client.ask("GET", path)) == (404, "transaction.unknown")
    assert client.listed(external_id="nobody") == []
    long = "x" * 1000
    path = f"/v1/transactions/by-external-id/{long}"
    assert problem(client.ask("GET", path)) == (400, "input.invalid")


# -- Why -------------------------------------------------------------------------------------


def test_why_looks_at_the_archive_and_brings_nothing_back(client: Client) -> None:
    sleeper, ended = client.started("approval"), client.started()
    client.left_the_store(sleeper)
    client.left_the_store(ended)
    reason = client.why(sleeper)
    assert (reason["code"], reason["facts"]["reason"]) == ("archived", "waiting_switch")
    assert client.why(ended)["code"] == "final"
    for each in (sleeper, ended):
        key = names.state(each)
        assert client.in_store(lambda store, key=key: store.call("EXISTS", key)) == 0


def test_a_state_that_is_nowhere_is_told_to_be_lost(client: Client) -> None:
    lost = f"tx-0000{'a' * 35}1"[:43]

    async def sleep(store: Store) -> None:
        await store.call("ZADD", names.sorted_set(0, "sleepingZ"), 4_000_000_000_000, lost)

    client.in_store(sleep)
    reason = client.why(lost)
    assert reason["code"] == "state_lost"
    assert reason["facts"] == {"wake_ms": 4_000_000_000_000}


# -- Operators -------------------------------------------------------------------------------


def test_the_status_tells_who_archives_and_what_waits(client: Client) -> None:
    client.left_the_store(client.started())
    page = client.json("/v1/archive")
    (cell,) = page["cells"]
    node = client.json("/v1/nodes")["nodes"][0]["id"]
    assert (cell["cell"], cell["archiver"]) == (0, node)
    assert cell["until_ms"] > page["now_ms"]
    assert page["problem"] == ""
    assert page["cursor"] == ""


def test_what_was_set_aside_is_listed_with_its_cause_and_retried(client: Client) -> None:
    waits = f"tx-0000{'b' * 36}"

    async def set_aside(store: Store) -> None:
        # No hash at all: what no archive could keep.
        await store.call("SET", names.state(waits), "junk")
        await store.call("ZADD", names.sorted_set(0, "toArchiveZ"), 1, waits)

    client.in_store(set_aside)
    for _ in range(2000):
        page = client.json("/v1/archive/set-aside")
        if page["set_aside"]:
            break
    (row,) = page["set_aside"]
    assert (row["id"], row["tries"]) == (waits, 1)
    assert row["cause"]
    assert client.json("/v1/archive")["cells"][0]["set_aside"] == 1
    retried = client.ask("POST", "/v1/archive/retry")
    assert (retried.status, retried.json()) == (200, {"count": 1})
    for _ in range(2000):
        (row,) = client.json("/v1/archive/set-aside")["set_aside"]
        if row["tries"] == 2:
            break
    assert row["tries"] == 2, "it was tried at once"

    async def mend(store: Store) -> None:
        await store.call("DEL", names.state(waits))

    client.in_store(mend)
    client.ask("POST", "/v1/archive/retry")
    for _ in range(2000):
        if not client.json("/v1/archive/set-aside")["set_aside"]:
            return
    raise AssertionError("it is set aside, and there is nothing")


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", "/v1/archive"), ("GET", "/v1/archive/set-aside"), ("POST", "/v1/archive/retry")],
)
def test_archiving_is_seen_with_keys_of_the_default_project_alone(
    client: Client, shop: Client, station: tuple[Serving, Keys], method: str, path: str
) -> None:
    assert problem(shop.ask(method, path)) == (404, "not-found")
    reader = Client(station[0], station[1].read)
    assert problem(reader.ask(method, path))[0] == 403
    assert problem(Client(station[0], "").ask(method, path))[0] == 401


def test_place_of_history_for_other_keys_than_the_operators_is_refused(
    client: Client, shop: Client, station: tuple[Serving, Keys]
) -> None:
    place = client.json("/v1/history")
    assert place["dataset"] == station[0].node.opened.dataset
    assert set(place) == {"dataset", "data", "lake", "embedded"}
    assert problem(shop.ask("GET", "/v1/history")) == (404, "not-found")
    reader = Client(station[0], station[1].read)
    assert problem(reader.ask("GET", "/v1/history"))[0] == 403
    assert problem(Client(station[0], "").ask("GET", "/v1/history"))[0] == 401


@pytest.mark.parametrize("query", ["cursor=x", "cursor=1", "cursor=-1", "cursor=99999999"])
def test_a_cursor_that_is_not_ours_is_refused(client: Client, query: str) -> None:
    assert problem(client.ask("GET", f"/v1/archive?{query}")) == (400, "input.invalid")
    refused = client.ask("GET", f"/v1/archive/set-aside?{query}.")
    assert problem(refused) == (400, "input.invalid")
