"""`/v1/transactions`, `/v1/pipelines`, `/v1/nodes` and `/v1/why` of a station that runs an app."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from tests.helpers.http import Answer, ask, wire
from tests.helpers.server import Keys, background_station, make_keys
from waystation import App, Fail, RetryLater, Wait
from waystation.config import AuthConfig, Config, HttpConfig

_numbers = itertools.count(1)
NOBODY = "tx-0000" + "f" * 36


class Refund(msgspec.Struct):
    cents: int


def refunds() -> App:
    """The app of these tests."""
    app = App()

    @app.step("refund/approve")
    async def approve(ctx: Any, refund: Refund) -> Any:
        match ctx.switch("approved"):
            case None:
                return Wait("approved", at_most="2d")
            case "yes":
                return refund
            case _:
                return Fail("refused")

    @app.step("refund/pay")
    async def pay(ctx: Any, refund: Refund) -> Any:
        ctx.log.info(f"paying {refund.cents}")
        return {"paid": refund.cents}

    @app.step("refund/break")
    async def broken(ctx: Any, given: Any) -> Any:
        raise RuntimeError("the secret of the bank")

    @app.step("refund/later")
    async def later(ctx: Any, given: Any) -> Any:
        return given if ctx.retries else RetryLater("1h", note="the bank is closed")

    @app.step("refund/report")
    async def report(ctx: Any, given: Any) -> Any:
        await ctx.progress({"half": True})
        return given if ctx.switch("go") else Wait("go")

    @app.step("refund/look")
    async def look(ctx: Any, given: Any) -> Any:
        return {
            "input": ctx.input,
            "data": ctx.transaction.data,
            "id": ctx.transaction.id,
            "type": ctx.transaction.type,
            "external": ctx.transaction.external_id,
            "metadata": ctx.metadata,
            "switches": ctx.switches,
            "deadline": ctx.deadline.timestamp(),
            "options": dict(ctx.options),
            "place": ctx.place,
        }

    app.pipeline("refund", ["refund/approve", "refund/pay"])
    app.pipeline("looking", ["refund/pay", ("refund/look", {"colour": "red"})])
    app.pipeline("plain", ["refund/pay"])
    app.pipeline("broken", ["refund/break"])
    app.pipeline("later", ["refund/later"])
    app.pipeline("reporting", ["refund/report"])
    app.pipeline("inner", ["refund/pay"], startable=False)
    app.pipeline("lonely", ["nobody/serves"])
    app.pipeline("fan", [("util/parallel", {"pipelines": ["refund"] * 3})])
    return app


@dataclass(frozen=True)
class Client:
    """Asks with one key."""

    url: str
    key: str = ""

    def ask(self, method: str, path: str, content: Any = None) -> Answer:
        body = None if content is None else json.dumps(content).encode()
        return ask(self.url, method, path, body, key=self.key)

    def start(self, type_: str = "refund", data: Any = None, **metadata: Any) -> Answer:
        given = {"cents": 500} if data is None else data
        order = {"type": type_, "data": given, "metadata": metadata}
        return self.ask("POST", "/v1/transactions", order)

    def started(self, type_: str = "refund", data: Any = None, **metadata: Any) -> str:
        answer = self.start(type_, data, **metadata)
        assert answer.status == 201, answer
        return str(answer.json()["metadata"]["txId"])

    def get(self, transaction_id: str, *, wait: str = "") -> Any:
        query = f"?wait={wait}" if wait else ""
        answer = self.ask("GET", f"/v1/transactions/{transaction_id}{query}")
        assert answer.status == 200, answer
        return answer.json()

    def why(self, transaction_id: str) -> str:
        return str(self.ask("GET", f"/v1/why/{transaction_id}").json()["code"])

    def until(self, transaction_id: str, code: str) -> None:
        """Looks until the reason is this one."""
        for _ in range(2000):
            found = self.why(transaction_id)
            if found == code:
                return
        raise AssertionError(f"{found}, not {code}")

    def switch(self, transaction_id: str, name: str, value: Any) -> Answer:
        path = f"/v1/transactions/{transaction_id}/switches/{name}"
        return self.ask("PUT", path, {"value": value})


def problem(answer: Answer) -> tuple[int, str]:
    assert answer.header("content-type") == "application/problem+json", answer
    return answer.status, answer.json()["code"]


@pytest.fixture(scope="module")
def station(module_store_settings: Config) -> Iterator[tuple[str, Keys]]:
    keys = make_keys(module_store_settings.data_dir)
    settings = replace(
        module_store_settings,
        auth=AuthConfig(insecure=False),
        http=HttpConfig(port=0, poll_seconds_max=20),
    )
    with background_station(settings, app=refunds()) as running:
        yield running.url, keys


@pytest.fixture
def client(station: tuple[str, Keys]) -> Client:
    return Client(station[0], station[1].admin)


@pytest.fixture
def shop(station: tuple[str, Keys]) -> Client:
    return Client(station[0], station[1].shop_admin)


@pytest.fixture
def external_id() -> str:
    return f"r-{next(_numbers)}"


# -- Starting and looking --------------------------------------------------------------------


def test_a_transaction_is_started_switched_and_waited_for(client: Client, external_id: str) -> None:
    answer = client.start(externalId=external_id, mine="kept")
    assert answer.status == 201
    summary = answer.json()
    metadata = summary["metadata"]
    transaction_id = metadata["txId"]
    assert summary == {
        "metadata": {
            "owner": "default",
            "txId": transaction_id,
            "externalId": external_id,
            "transactionType": "refund",
            "status": "running",
            "completionTime": None,
            "lastUpdated": metadata["lastUpdated"],
            "sequenceOfUpdate": 1,
            "notifiedTime": None,
        },
        "progressReport": None,
        "data": None,
    }
    client.until(transaction_id, "waiting_switch")
    assert client.get(transaction_id)["metadata"]["status"] == "waiting_switch"
    switched = client.switch(transaction_id, "approved", "yes")
    assert switched.json() == {"outcome": "woken", "switches": {"approved": "yes"}}
    ended = client.get(transaction_id, wait="15s")
    assert (ended["metadata"]["status"], ended["data"]) == ("success", {"paid": 500})
    assert ended["metadata"]["completionTime"] >= metadata["lastUpdated"]
    assert ended["metadata"]["notifiedTime"] >= ended["metadata"]["completionTime"]


def test_a_step_sees_what_its_client_has_sent(client: Client, external_id: str) -> None:
    deadline = "2090-01-31T12:00:00Z"
    metadata = {"lang": "en", "externalId": external_id, "deadline": deadline, "mine": [1.0]}
    transaction_id = client.started("looking", **metadata, startAt="1h")
    client.switch(transaction_id, "colour", "red")
    assert client.ask("POST", f"/v1/transactions/{transaction_id}/wake").status == 200
    ended = client.get(transaction_id, wait="15s")
    assert ended["data"] == {
        "input": {"paid": 500},
        "data": {"cents": 500},
        "id": transaction_id,
        "type": "looking",
        "external": external_id,
        "metadata": {"lang": "en", "mine": [1.0]},
        "switches": {"colour": "red"},
        "deadline": pytest.approx(datetime.fromisoformat(deadline).timestamp(), abs=5),
        "options": {"colour": "red"},
        "place": "2",
    }


def test_the_same_start_again_is_200_with_what_is_there(client: Client, external_id: str) -> None:
    first = client.start(externalId=external_id).json()
    again = client.start(externalId=external_id)
    assert again.status == 200
    assert again.json()["duplicate"] is True
    assert again.json()["metadata"]["txId"] == first["metadata"]["txId"]
    assert "duplicate" not in first


def test_another_start_under_the_same_external_id_is_409(client: Client, external_id: str) -> None:
    first = client.started(externalId=external_id)
    for answer in (
        client.start(data={"cents": 1}, externalId=external_id),
        client.start("plain", externalId=external_id),
    ):
        assert problem(answer) == (409, "transaction.duplicate")
        assert answer.json()["existing_id"] == first


def test_many_are_started_with_a_result_for_each(client: Client, external_id: str) -> None:
    taken = client.started(externalId=external_id)
    orders = [
        {"type": "plain", "data": {"cents": 1}},
        {"type": "nobody"},
        {"type": "refund", "data": 7, "metadata": {"externalId": external_id}},
        {"type": "refund", "data": {"cents": 500}, "metadata": {"externalId": external_id}},
    ]
    answer = client.ask("POST", "/v1/transactions", {"transactions": orders})
    assert answer.status == 200
    started, unknown, other, same = answer.json()["results"]
    assert client.get(started["metadata"]["txId"], wait="15s")["data"] == {"paid": 1}
    assert unknown["error"]["code"] == "pipeline.unknown"
    assert other["error"]["code"] == "transaction.duplicate"
    assert other["error"]["existing_id"] == taken
    assert (same["duplicate"], same["metadata"]["txId"]) == (True, taken)


def test_start_of_a_list_warns_of_each_by_its_place(client: Client) -> None:
    orders = [{"type": "plain"}, {"type": "plain", "metadata": {"dead_line": "1h"}}]
    answer = client.ask("POST", "/v1/transactions", {"transactions": orders})
    fine, warned = answer.json()["results"]
    assert "warnings" not in fine
    (warning,) = warned["warnings"]
    assert warning.startswith("transactions[1].metadata.dead_line is not an option")
    assert warning.endswith("Did you mean deadline?")


def test_a_list_of_which_nothing_was_started_is_a_problem(client: Client) -> None:
    orders = [{"type": "nobody"}, {"type": "inner"}]
    answer = client.ask("POST", "/v1/transactions", {"transactions": orders})
    assert problem(answer) == (404, "pipeline.unknown")


def test_one_bad_order_starts_nothing_of_its_request(client: Client, external_id: str) -> None:
    good = {"type": "plain", "metadata": {"externalId": external_id}}
    bad = {"type": "plain", "metadata": {"startAt": "soon"}}
    answer = client.ask("POST", "/v1/transactions", {"transactions": [good, bad]})
    assert problem(answer) == (400, "input.invalid")
    assert answer.json()["errors"][0]["field"] == "transactions[1].metadata.startAt"
    listed = client.ask("GET", f"/v1/transactions?external_id={external_id}").json()
    assert listed["transactions"] == []


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"", 400, "input.invalid"),
        (b"[]", 400, "input.invalid"),
        (b'{"type":"Refund"}', 400, "input.invalid"),
        (b'{"type":"refund","data":nan}', 400, "input.invalid"),
        (b'{"type":"refund","data":"\xff"}', 400, "input.invalid"),
        (b'{"type":"refund","meta":{}}', 400, "input.invalid"),
        (b'{"type":"nobody"}', 404, "pipeline.unknown"),
        (b'{"type":"inner"}', 422, "pipeline.not-a-type"),
        (b'{"type":"refund","data":"%b"}' % (b"x" * 1_048_500), 413, "input.too-large"),
        (b'{"type":"refund","data":"%b"}' % (b"x" * 1_048_576), 413, "input.too-large"),
    ],
)
def test_what_cannot_be_started_is_told_why(
    client: Client, body: bytes, status: int, code: str
) -> None:
    answer = ask(client.url, "POST", "/v1/transactions", body, key=client.key)
    assert problem(answer) == (status, code)


def test_data_survives_byte_for_byte(client: Client) -> None:
    """Big integers, 1.0 and [] are what they were: JSON of users is bytes from door to door."""
    client.ask("PUT", "/v1/pipelines/echo", {"steps": ["util/checkpoint"]})
    data = b'{"n": 12345678901234567890123, "f": 1.0, "e": [], "s": "\\u00fc"}'
    body = b'{"type":"echo","data":%b}' % data
    answer = ask(client.url, "POST", "/v1/transactions", body, key=client.key)
    transaction_id = answer.json()["metadata"]["txId"]
    ended = ask(client.url, "GET", f"/v1/transactions/{transaction_id}?wait=15s", key=client.key)
    assert b'"data":%b}' % data in ended.body


def test_a_progress_report_is_shown_until_the_end(client: Client) -> None:
    transaction_id = client.started("reporting", {})
    client.until(transaction_id, "waiting_switch")
    assert client.get(transaction_id)["progressReport"] == {"half": True}
    client.switch(transaction_id, "go", True)
    ended = client.get(transaction_id, wait="15s")
    assert (ended["metadata"]["status"], ended["progressReport"]) == ("success", None)


def test_an_exception_is_told_in_the_journal_and_not_to_the_client(client: Client) -> None:
    transaction_id = client.started("broken")
    ended = client.get(transaction_id, wait="15s")
    assert ended["metadata"]["status"] == "internal-error"
    assert "secret" not in json.dumps(ended)
    journal = client.ask("GET", f"/v1/transactions/{transaction_id}/journal").json()
    (step,) = journal["steps"]
    assert (step["place"], step["type"], step["attempts"]) == ("1", "refund/break", 1)
    assert "the secret of the bank" in step["last"][0]["trace"]


def test_the_journal_has_attempts_and_log_lines(client: Client) -> None:
    transaction_id = client.started("plain")
    client.get(transaction_id, wait="15s")
    journal = client.ask("GET", f"/v1/transactions/{transaction_id}/journal").json()
    (step,) = journal["steps"]
    assert (journal["type"], journal["status"]) == ("plain", "success")
    assert [line["text"] for line in step["logs"]] == ["paying 500"]
    assert step["last"][0]["outcome"] == "success"
    (node,) = client.ask("GET", "/v1/nodes").json()["nodes"]
    assert step["last"][0]["node"] in node["id"]


def test_a_wait_ends_with_its_time_and_tells_how_it_stands(client: Client) -> None:
    transaction_id = client.started()
    assert client.get(transaction_id, wait="50ms")["metadata"]["status"] == "waiting_switch"
    for wait in ("soon", "-1s", "30"):
        answer = client.ask("GET", f"/v1/transactions/{transaction_id}?wait={wait}")
        assert problem(answer) == (400, "input.invalid")


def test_a_client_that_hangs_up_while_it_waits_leaves_nothing_behind(client: Client) -> None:
    """F-31."""
    transaction_id = client.started()
    client.until(transaction_id, "waiting_switch")
    with wire(client.url) as connection:
        connection.send(
            f"GET /v1/transactions/{transaction_id}?wait=20s HTTP/1.1\r\nHost: localhost\r\n"
            f"Authorization: Bearer {client.key}\r\n\r\n".encode()
        )
    client.switch(transaction_id, "approved", "no")
    ended = client.get(transaction_id, wait="15s")
    assert (ended["metadata"]["status"], ended["data"]) == ("failed", {"error": "refused"})


# -- Switches, cancel, wake ------------------------------------------------------------------


@pytest.mark.parametrize("value", [None, [], {}, "a b", "a,b", "x" * 33])
def test_a_value_that_no_switch_can_have_is_refused(client: Client, value: Any) -> None:
    transaction_id = client.started()
    answer = client.switch(transaction_id, "approved", value)
    assert answer.status == 400
    assert client.why(transaction_id) != "final"


def test_switches_can_be_deleted(client: Client) -> None:
    transaction_id = client.started()
    assert client.switch(transaction_id, "other", False).json()["switches"] == {"other": False}
    assert client.switch(transaction_id, "other", False).json()["outcome"] == "nochange"
    path = f"/v1/transactions/{transaction_id}/switches/other"
    assert client.ask("DELETE", path).json() == {"outcome": "updated", "switches": {}}


def test_what_has_ended_is_left_alone(client: Client) -> None:
    transaction_id = client.started("plain")
    client.get(transaction_id, wait="15s")
    final = (409, "transaction.final")
    assert problem(client.switch(transaction_id, "a", 1)) == final
    assert problem(client.ask("POST", f"/v1/transactions/{transaction_id}/wake")) == final
    assert problem(client.ask("POST", f"/v1/transactions/{transaction_id}/cancel")) == final


def test_a_transaction_is_cancelled_once_with_its_cause(client: Client) -> None:
    transaction_id = client.started()
    client.until(transaction_id, "waiting_switch")
    path = f"/v1/transactions/{transaction_id}/cancel"
    cancelled = client.ask("POST", f"{path}?cause=sold+out")
    assert cancelled.json() == {"outcome": "cancelled", "status": "cancelled"}
    assert client.ask("POST", path).json() == {"outcome": "known", "status": "cancelled"}
    assert client.get(transaction_id)["metadata"]["status"] == "cancelled"
    reason = client.ask("GET", f"/v1/why/{transaction_id}").json()
    assert (reason["code"], reason["facts"]["cause"]) == ("final", "sold out")
    bad = client.ask("POST", f"{path}?cause={'x' * 201}")
    assert problem(bad) == (400, "input.invalid")


def test_what_sleeps_is_woken_and_what_does_not_is_told(client: Client) -> None:
    transaction_id = client.started("later")
    client.until(transaction_id, "retrying")
    path = f"/v1/transactions/{transaction_id}/wake"
    assert client.ask("POST", path).json() == {"id": transaction_id}
    assert client.get(transaction_id, wait="15s")["metadata"]["status"] == "success"
    lonely = client.started("lonely", startAt="1h")
    assert client.why(lonely) == "scheduled"
    assert client.ask("POST", f"/v1/transactions/{lonely}/wake").status == 200


def test_children_are_listed_while_they_are_under_way(client: Client) -> None:
    parent = client.started("fan")
    client.until(parent, "waiting_children")
    found = client.ask("GET", f"/v1/transactions/{parent}/children").json()
    assert (found["total"], found["created"], found["done"]) == (3, 3, 0)
    for child in found["children"]:
        client.until(child["id"], "waiting_switch")
        client.switch(child["id"], "approved", "yes")
    ended = client.get(parent, wait="15s")
    assert (ended["metadata"]["status"], ended["data"]) == ("success", [{"paid": 500}] * 3)
    found = client.ask("GET", f"/v1/transactions/{parent}/children").json()
    assert (found["total"], found["children"]) == (0, [])


# -- Lists and pipelines ---------------------------------------------------------------------


def test_transactions_are_listed_by_state_and_external_id(client: Client, external_id: str) -> None:
    transaction_id = client.started(externalId=external_id)
    client.until(transaction_id, "waiting_switch")
    listed = client.ask("GET", "/v1/transactions?state=waiting_switch&limit=1000").json()
    assert transaction_id in [row["id"] for row in listed["transactions"]]
    (row,) = client.ask("GET", f"/v1/transactions?external_id={external_id}").json()["transactions"]
    assert (row["id"], row["pipeline"], row["switch"]) == (transaction_id, "refund", "approved")
    for query in ("state=asleep", "limit=0", "limit=x", "limit=1001", "cursor=x", "external_id="):
        assert client.ask("GET", f"/v1/transactions?{query}").status == 400, query
    both = client.ask("GET", f"/v1/transactions?external_id={external_id}&state=queued")
    assert problem(both) == (400, "input.invalid")


def test_a_pipeline_is_defined_paused_resumed_and_retired(client: Client) -> None:
    steps = ["refund/pay", {"type": "util/delay", "options": {"min": 1, "max": 1}}]
    made = client.ask("PUT", "/v1/pipelines/made", {"steps": steps})
    assert made.status == 200
    shown = made.json()
    assert (shown["revision"], shown["paused"], shown["unserved"]) == (1, False, [])
    assert client.ask("PUT", "/v1/pipelines/made", {"steps": steps}).json() == shown
    other = client.ask("PUT", "/v1/pipelines/made", {"steps": ["nobody/serves"]}).json()
    assert other["versions"] == [other["active"], shown["active"]]
    assert "nobody/serves" in other["unserved"][0]
    path = f"/v1/pipelines/made/versions/{shown['active']}"
    assert client.ask("GET", path).json() == shown["definition"]
    client.ask("PUT", "/v1/pipelines/made", {"steps": steps})
    assert client.ask("POST", "/v1/pipelines/made/pause").json()["paused"] is True
    held = client.started("made")
    client.until(held, "held")
    assert client.ask("POST", "/v1/pipelines/made/resume").json()["paused"] is False
    assert client.get(held, wait="15s")["metadata"]["status"] == "success"
    names = [row["name"] for row in client.ask("GET", "/v1/pipelines").json()["pipelines"]]
    assert names == sorted(names)
    assert {"made", "refund"} <= set(names)
    assert client.ask("DELETE", "/v1/pipelines/made").status == 204
    assert problem(client.ask("GET", "/v1/pipelines/made")) == (404, "pipeline.unknown")
    assert problem(client.start("made")) == (404, "pipeline.unknown")


@pytest.mark.parametrize(
    ("content", "code"),
    [
        ({"steps": []}, "input.invalid"),
        ({"steps": ["a/b"], "name": "other"}, "input.invalid"),
        ({"steps": ["a/b"], "extra": 1}, "input.invalid"),
        ({"steps": ["not a type"]}, "pipeline.invalid"),
        ({"steps": [{"type": "util/delay", "options": {"least": 1}}]}, "pipeline.invalid"),
    ],
)
def test_a_definition_that_cannot_be_is_refused(client: Client, content: Any, code: str) -> None:
    assert problem(client.ask("PUT", "/v1/pipelines/bad", content)) == (400, code)
    assert client.ask("GET", "/v1/pipelines/bad").status == 404


def test_pages_of_pipelines_follow_each_other(client: Client) -> None:
    found, cursor = [], ""
    while True:
        page = client.ask("GET", f"/v1/pipelines?limit=2&cursor={cursor}").json()
        found += [row["name"] for row in page["pipelines"]]
        cursor = page["cursor"]
        if not cursor:
            break
    whole = client.ask("GET", "/v1/pipelines?limit=1000").json()["pipelines"]
    assert found == [row["name"] for row in whole]


def test_nodes_tell_which_steps_they_serve_and_groups_what_they_were_told(client: Client) -> None:
    found = client.ask("GET", "/v1/nodes").json()
    (node,) = found["nodes"]
    assert node["group"] == "master"
    assert {"refund/pay", "util/delay"} <= set(node["steps"])
    told = client.ask("PUT", "/v1/nodes/master/settings", {"setting": "workers", "value": 7})
    assert told.status == 200
    client.get(client.started("plain"), wait="15s")
    for _ in range(1000):
        groups = client.ask("GET", "/v1/nodes").json()["groups"]
        if groups["master"]["workers"] == 7:
            break
    assert groups["master"]["workers"] == 7
    for wrong in ({"setting": "speed", "value": 7}, {"setting": "workers", "value": 0}):
        answer = client.ask("PUT", "/v1/nodes/master/settings", wrong)
        assert problem(answer) == (400, "input.invalid")


# -- Who may ------------------------------------------------------------------------------------


def test_no_project_sees_or_reaches_what_another_has(client: Client, shop: Client) -> None:
    """P10, S-09."""
    theirs = client.started(externalId="shared")
    client.until(theirs, "waiting_switch")
    path = f"/v1/transactions/{theirs}"
    for method, each, content in (
        ("GET", path, None),
        ("GET", f"{path}?wait=1s", None),
        ("GET", f"{path}/journal", None),
        ("GET", f"{path}/children", None),
        ("POST", f"{path}/cancel", None),
        ("POST", f"{path}/wake", None),
        ("PUT", f"{path}/switches/approved", {"value": "yes"}),
        ("DELETE", f"{path}/switches/approved", None),
        ("GET", "/v1/transactions/by-external-id/shared", None),
        ("GET", f"{path}/webhook", None),
        ("POST", f"{path}/webhook/redrive", None),
        ("DELETE", f"{path}/webhook", None),
    ):
        assert problem(shop.ask(method, each, content)) == (404, "transaction.unknown"), each
    assert shop.why(theirs) == "unknown"
    assert shop.ask("GET", "/v1/transactions?limit=1000").json()["transactions"] == []
    assert shop.ask("GET", "/v1/transactions?external_id=shared").json()["transactions"] == []
    assert problem(shop.start("refund")) == (404, "pipeline.unknown")
    assert shop.ask("GET", "/v1/pipelines").json()["pipelines"] == []
    for state in ("failed", "waiting"):
        assert shop.ask("GET", f"/v1/webhooks?state={state}").json()["replies"] == []
    for method, each in (
        ("GET", "/v1/pipelines/refund"),
        ("POST", "/v1/pipelines/refund/pause"),
        ("POST", "/v1/pipelines/refund/resume"),
        ("DELETE", "/v1/pipelines/refund"),
        ("GET", "/v1/nodes"),
        ("GET", "/v1/archive"),
        ("GET", "/v1/archive/set-aside"),
        ("POST", "/v1/archive/retry"),
    ):
        assert shop.ask(method, each).status == 404, each
    assert client.why(theirs) == "waiting_switch", "and nothing has changed"


def test_the_same_pipeline_name_is_another_in_another_project(client: Client, shop: Client) -> None:
    shop.ask("PUT", "/v1/pipelines/refund", {"steps": ["util/fixed-reply"]})
    started = shop.started("refund", {}, externalId="shared")
    assert shop.get(started, wait="15s")["metadata"]["owner"] == "shop"
    assert shop.ask("DELETE", "/v1/pipelines/refund").status == 204
    assert client.ask("GET", "/v1/pipelines/refund").status == 200


def test_a_key_that_may_only_read_changes_nothing(
    station: tuple[str, Keys], client: Client
) -> None:
    reader, transaction_id = Client(station[0], station[1].read), client.started()
    path = f"/v1/transactions/{transaction_id}"
    assert reader.get(transaction_id)["metadata"]["txId"] == transaction_id
    for method, each, content in (
        ("POST", "/v1/transactions", {"type": "plain"}),
        ("POST", f"{path}/cancel", None),
        ("POST", f"{path}/wake", None),
        ("PUT", f"{path}/switches/a", {"value": 1}),
        ("DELETE", f"{path}/switches/a", None),
        ("PUT", "/v1/pipelines/x", {"steps": ["a/b"]}),
        ("PUT", "/v1/nodes/master/settings", {"setting": "workers", "value": 1}),
    ):
        assert problem(reader.ask(method, each, content)) == (403, "auth.forbidden"), each


@pytest.mark.parametrize("odd", ["tx-0", NOBODY, "tx-ffff" + "0" * 36, "*", "a:b", "%00", "..%2f"])
def test_what_is_no_id_is_unknown_and_leaves_nothing_behind(client: Client, odd: str) -> None:
    path = f"/v1/transactions/{odd}"
    for method, each, content in (
        ("GET", path, None),
        ("GET", f"{path}?wait=1s", None),
        ("PUT", f"{path}/switches/a", {"value": 1}),
        ("POST", f"{path}/cancel", None),
        ("POST", f"{path}/wake", None),
    ):
        assert client.ask(method, each, content).status == 404, each
    assert client.why(odd) == "unknown" if "%2f" not in odd else True
