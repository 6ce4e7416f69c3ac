"""No payload and no key shows in logs, metrics, readiness or error replies (S-12).

A station that logs everything it can gets a mixed workload, good and bad, full of words that must
not come out; then all that it ever said is searched for them.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import redis

from tests.helpers.http import Answer, Wire, ask, wire
from tests.helpers.processes import StationProcess, station_process
from tests.helpers.server import Keys, make_keys
from tests.helpers.store_faults import plain_server
from waystation.store.embedded.server import supervisor

#: Looks like what people send; never a part of a name.
PAYLOAD = "hunter2-4111111111111111"
PASSWORD = "correct-horse-battery"
BEARER = "bearer-of-the-administrator"
#: A token with an id; the signature is somebody's.
TOKEN = "eyJhbGciOiJIUzI1NiJ9.eyJqdGkiOiJ0LTEifQ.c2lnbmF0dXJlLW9mLXNvbWVib2R5"

SUBSCRIBER = "/channel/orders/subscription/polling/s"


@dataclass
class Talk:
    """What a station was asked, and every reply that had no reason to repeat a secret."""

    station: StationProcess
    keys: Keys
    replies: list[Answer] = field(default_factory=list)

    @property
    def url(self) -> str:
        return self.station.url

    def ask(
        self,
        method: str,
        path: str,
        body: str | bytes = "",
        *,
        key: str = "",
        expect: int,
        **headers: str,
    ) -> Answer:
        """Asks, and keeps the reply."""
        data = body.encode() if isinstance(body, str) else body
        answer = ask(self.url, method, path, data, headers, key=key)
        assert answer.status == expect, (method, path[:80], answer)
        self.replies.append(answer)
        return answer

    def said(self) -> str:
        """All log lines of the station and of its store, and all replies, as one text."""
        data = Path(self.station.log).with_suffix("")
        logs = [self.station.log, *data.rglob("*.log")]
        assert len(logs) > 1, "the store has a log too"
        lines = [log.read_text(errors="replace") for log in logs]
        replies = [f"{reply.headers} {reply.body.decode()}" for reply in self.replies]
        return "\n".join([*lines, *replies])


def secrets_of(keys: Keys) -> list[str]:
    """The secret part of every key that was used, good or bad."""
    used = (keys.admin, keys.write, keys.read, keys.expired, keys.revoked, keys.shop_write)
    return [key.split("_")[2] for key in used]


@pytest.fixture(scope="module")
def talk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Talk]:
    """A station at log level `debug`, after the whole workload."""
    data = tmp_path_factory.mktemp("secrecy") / "data"
    data.mkdir()
    keys = make_keys(data)
    with station_process(
        data,
        *("--durability", "memory"),
        WAYSTATION_LOG_LEVEL="debug",
        WAYSTATION_LOG_FORMAT="json",
        WAYSTATION_ADMIN_BEARER=BEARER,
    ) as station:
        talk = Talk(station, keys)
        use_channels(talk)
        use_topics(talk)
        use_wrong_keys(talk)
        manage_keys(talk)
        administrate(talk)
        send_garbage(talk)
        break_the_store(talk)
        yield talk


def use_channels(talk: Talk) -> None:
    """Publishing, fetching and acknowledging, right and wrong."""
    key = talk.keys.write
    content = f'{{"card":"{PAYLOAD}"}}'
    talk.ask("PUT", SUBSCRIBER, key=key, expect=200)
    talk.ask("PUT", "/channel/orders/message/m", content, key=key, expect=200)
    talk.ask("PUT", "/channel/orders/message/m", content, key=key, expect=200)
    talk.ask("PUT", "/channel/orders/message/n", content[:-1], key=key, expect=400)
    talk.ask("PUT", "/channel/orders/message/n", f'"{PAYLOAD * 50_000}"', key=key, expect=413)
    talk.ask("PUT", "/channel/Orders/message/n", content, key=key, expect=400)
    talk.ask("PUT", "/channel/orders/message/N", content, key=key, expect=400)
    talk.ask("POST", "/channel/orders/message/n", content, key=key, expect=405)
    talk.ask("PUT", "/channel/orders/nothing/n", content, key=key, expect=404)
    fetched = ask(talk.url, "GET", SUBSCRIBER, key=talk.keys.read)
    assert PAYLOAD in fetched.body.decode(), "the workload is about something"
    odd = base64.b64encode(f'{{"default":"{PAYLOAD}"}}'.encode()).decode()
    talk.ask("DELETE", f"{SUBSCRIBER}/message?ackHandle={PAYLOAD}", key=key, expect=400)
    talk.ask("DELETE", f"{SUBSCRIBER}/message?ackHandle={odd}", key=key, expect=400)
    talk.ask("GET", f"{SUBSCRIBER}?timeout={PAYLOAD}", key=key, expect=400)
    handle = fetched.json()["ackHandle"]
    talk.ask("DELETE", f"{SUBSCRIBER}/message?ackHandle={handle}", key=key, expect=204)


def use_topics(talk: Talk) -> None:
    """Producing, right and wrong: ids and groups may be names of people, headers may be secret."""
    key, messages = talk.keys.write, "/v1/topics/orders/messages"
    schema = '{"name":"orders","options":{"json_schema":{"maxLength":3}}}'
    talk.ask("POST", "/v1/topics", schema, key=talk.keys.admin, expect=201)
    talk.ask("POST", messages, f'["{PAYLOAD}"]', key=key, **{"X-Card": PAYLOAD}, expect=200)
    talk.ask("POST", messages, f'"{PAYLOAD}"', key=key, expect=422)
    talk.ask("POST", messages, f'"{PAYLOAD}', key=key, expect=422)
    talk.ask("POST", messages, "1", key=key, **{"X-Card": f"{PAYLOAD}\xff"}, expect=400)
    talk.ask("POST", messages, PAYLOAD * 500_000, key=key, expect=413)
    batch = {"Content-Type": "application/vnd.waystation.batch+json"}
    talk.ask("POST", messages, f'{{"messages":[{{"data":"{PAYLOAD}"', key=key, **batch, expect=400)
    both = f'{{"messages":[{{"data":"{PAYLOAD}","text":"{PAYLOAD}"}}]}}'
    talk.ask("POST", messages, both, key=key, **batch, expect=400)
    found = ask(talk.url, "GET", f"{messages}?partition=0", key=talk.keys.read)
    assert found.status == 200


def use_wrong_keys(talk: Talk) -> None:
    """Keys that are not valid, or in the wrong place; the secrets in them are real."""
    keys = talk.keys
    for key in (keys.revoked, keys.expired, f"{keys.admin}0", keys.write[:-1]):
        talk.ask("PUT", "/channel/orders/message/x", f'"{PAYLOAD}"', key=key, expect=403)
        talk.ask("GET", "/v1/keys", key=key, expect=401)
    talk.ask("GET", "/v1/keys", key=keys.read, expect=403)
    talk.ask("GET", "/metrics", Authorization=f"Basic {keys.admin}", expect=401)
    talk.ask("GET", "/metrics", Authorization=f"bearer {keys.admin}", expect=401)
    talk.ask("GET", "/livez", Authorization=f"Bearer {keys.admin}", expect=200)
    talk.ask("GET", f"/livez?key={keys.admin}", Cookie=f"key={keys.admin}", expect=200)
    talk.ask("GET", f"/v1/nothing?key={keys.admin}", key=keys.admin, expect=404)
    talk.ask("PUT", SUBSCRIBER, key=keys.shop_write, expect=200)


def manage_keys(talk: Talk) -> None:
    """The management routes, with bodies that are not what they should be."""
    key = talk.keys.admin
    talk.ask("GET", "/v1/keys", key=key, expect=200)
    talk.ask("POST", "/v1/keys", f'{{"scope":"read","{PAYLOAD}":1', key=key, expect=400)
    talk.ask(
        "POST", "/v1/keys", f'{{"scope":"read","label":1,"x":"{PAYLOAD}"}}', key=key, expect=400
    )
    talk.ask("POST", "/v1/projects", f'["{PAYLOAD}"]', key=key, expect=400)
    talk.ask("POST", "/v1/time/advance", f'{{"seconds":"{PAYLOAD}"}}', key=key, expect=400)
    talk.ask("DELETE", f"/v1/keys/{talk.keys.unknown}", key=key, expect=404)


def administrate(talk: Talk) -> None:
    """The routes of administrators, and tokens, revoked and not."""
    revoke, level = "/admin/jwt/revoke?jti=t-1&exp=4000000000", "/admin/log/level?category=*&level="
    talk.ask("PUT", SUBSCRIBER, key=TOKEN, expect=403)
    talk.ask("PUT", revoke, key=BEARER, expect=200)
    talk.ask("PUT", SUBSCRIBER, key=TOKEN, expect=403)
    talk.ask("PUT", f"{level}debug", key=BEARER, expect=204)
    talk.ask("PUT", f"{level}{PAYLOAD}", key=BEARER, expect=400)
    talk.ask("PUT", revoke, key=f"{BEARER}x", expect=403)
    talk.ask("PUT", revoke, key=TOKEN, expect=403)


def send_garbage(talk: Talk) -> None:
    """What is no HTTP, and what ends too early."""
    with wire(talk.url) as connection:
        connection.send(f"{PAYLOAD} {talk.keys.admin}\r\n\r\n".encode())
        talk.replies.append(connection.answer())
    with wire(talk.url) as connection:
        head = f"host: a\r\nauthorization: Bearer {talk.keys.admin}\r\nbad header {PAYLOAD}\r\n"
        connection.send(f"GET /v1/keys HTTP/1.1\r\n{head}\r\n".encode())
        talk.replies.append(connection.answer())
    with wire(talk.url) as connection:
        head = f"host: a\r\nauthorization: Bearer {talk.keys.admin}\r\nx: {PAYLOAD * 2000}\r\n"
        connection.send(f"GET /v1/keys HTTP/1.1\r\n{head}\r\n".encode())
        talk.replies.append(connection.answer())
    with wire(talk.url) as connection:
        head = f"host: a\r\nauthorization: Bearer {talk.keys.write}\r\ncontent-length: 999\r\n"
        connection.send(f"PUT /channel/orders/message/x HTTP/1.1\r\n{head}\r\n{PAYLOAD}".encode())


def break_the_store(talk: Talk) -> None:
    """What another program left in the store makes a request fail in a way nobody foresaw."""
    key, content = talk.keys.write, f'"{PAYLOAD}"'
    with redis.Redis(unix_socket_path=talk.station.store.path) as store:
        store.rpush("c.{broken}.clock", "no number")
        talk.ask("PUT", "/channel/broken/message/m", content, key=key, expect=409)
        store.execute_command("ACL", "SETUSER", "default", "-evalsha")
        talk.ask("PUT", "/channel/refused/message/m", content, key=key, expect=500)
        store.execute_command("ACL", "SETUSER", "default", "+evalsha")
        talk.ask("PUT", "/channel/torn/subscription/polling/s", key=key, expect=200)
        store.mset({"c.{torn}.clock": 1, "c.{torn}.m.1": f'{{"id":"m","content":{PAYLOAD}'})
        talk.ask("GET", "/channel/torn/subscription/polling/s", key=key, expect=200)
        store.client_kill_filter(_type="normal", skipme=True)
        store.client_kill_filter(_type="pubsub")
    talk.ask("PUT", "/channel/orders/message/z", content, key=key, expect=200)


def test_the_logs_and_replies_hold_no_payload_and_no_key(talk: Talk) -> None:
    talk.ask("GET", "/readyz", expect=200)
    talk.ask("GET", "/metrics", key=talk.keys.read, expect=200)
    said = talk.said()

    for event in (
        "request failed",
        "unreadable message skipped",
        "connection lost",
        "Invalid HTTP request",
    ):
        assert event in said, "the workload reached the places that log"
    for secret in (PAYLOAD, BEARER, TOKEN, TOKEN.rpartition(".")[2], *secrets_of(talk.keys)):
        assert secret not in said, said[max(0, said.index(secret) - 300) :][:600]


def test_a_failure_is_found_in_the_log_by_the_id_in_its_reply(talk: Talk) -> None:
    failed = next(reply for reply in talk.replies if reply.status == 500)

    assert failed.body == b""
    assert f'"request":"{failed.header("x-request-id")}"' in talk.station.log.read_text()


def test_keys_are_kept_as_hashes_only(talk: Talk) -> None:
    data = Path(talk.station.log).with_suffix("")
    kept = b"".join(file.read_bytes() for file in data.glob("catalogue.db*"))

    assert talk.keys.admin.split("_")[1].encode() in kept
    for secret in secrets_of(talk.keys):
        assert secret.encode() not in kept
        assert bytes.fromhex(secret) not in kept


@pytest.mark.slow
def test_the_password_of_the_store_is_not_told_even_when_the_store_is_away(
    tmp_path: Path,
) -> None:
    data = tmp_path / "data"
    with plain_server("--appendonly", "yes") as server:
        assert supervisor.ask(server.address.path, f"CONFIG SET requirepass {PASSWORD}".encode())
        url = f"unix://:{PASSWORD}@{server.address.path}"
        with station_process(
            data,
            *("--insecure", "--durability", "memory"),
            WAYSTATION_STORE_URL=url,
            WAYSTATION_STORE_CALL_SECONDS_MAX="3",
            WAYSTATION_LOG_LEVEL="debug",
        ) as station:
            url = station.url
            assert ask(url, "PUT", "/channel/c/message/m", b"1").status == 200
            server.kill()

            ready, refused = (
                ask(url, "GET", "/readyz"),
                ask(url, "PUT", "/channel/c/message/n", b"1"),
            )

            assert (ready.status, refused.status) == (503, 503)
            assert "store" in ready.json()["problems"]
            told = [ready.body, refused.body, str(station.said).encode(), station.log.read_bytes()]
    assert PASSWORD.encode() not in b"\n".join(told)


# -- Metrics -------------------------------------------------------------------------------------

#: What the HTTP parser lets through beyond the methods of our routes.
ODD_METHODS = (
    "PATCH",
    "HEAD",
    "PROPFIND",
    "MKCOL",
    "SUBSCRIBE",
    "SEARCH",
    "PURGE",
    "TRACE",
    "LINK",
)
_SERIES = re.compile(r"^([a-z_]+)(\{[^}]*\})? ", re.MULTILINE)


def series(connection: Wire, key: str) -> set[tuple[str, str]]:
    """Every name in the exposition with its labels."""
    answer = connection.ask("GET", "/metrics", key=key)
    assert answer.status == 200
    return set(_SERIES.findall(answer.body.decode()))


def flood(connection: Wire, keys: Keys, word: str) -> None:
    """A thousand paths that were never asked before, known and unknown, with many methods."""
    for number in range(1000):
        name = f"{word}{number}"
        path = (
            f"/{name}",
            f"/v1/{name}",
            f"/v1/keys/{name}",
            f"/channel/{name}",
            f"/probe/{name}",
            f"/channel/{name}/subscription/polling/{name}",
            f"/channel/{name}/message/{name}?{name}={name}",
        )[number % 7]
        method = ("GET", "PUT", "DELETE", "POST", *ODD_METHODS)[number // 7 % 13]
        headers = {"x-request-id": name, "user-agent": name, "origin": f"http://{name}"}
        answer = connection.ask(method, path, b"1", headers, key=keys.admin)
        assert answer.status < 500, (method, path, answer)


def test_labels_of_metrics_come_from_fixed_sets(talk: Talk) -> None:
    document = ask(talk.url, "GET", "/openapi.json").json()
    with wire(talk.url) as connection:
        series(connection, talk.keys.admin)  # Looking is a request too, and counts from here on.
        flood(connection, talk.keys, "first")
        after_one = series(connection, talk.keys.admin)
        flood(connection, talk.keys, "second")
        after_two = series(connection, talk.keys.admin)

    assert after_two == after_one, "another thousand paths are nothing new"
    assert len(after_one) < 600
    labels = [dict(re.findall(r'(\w+)="([^"]*)"', text)) for _, text in after_one]
    routes = {found["route"] for found in labels if "route" in found}
    methods = {found["method"] for found in labels if "method" in found}
    assert routes <= {*document["paths"], "method", "shed", "unknown", "wide"}
    assert methods <= {"DELETE", "GET", "POST", "PUT", "-"}
    assert {found for each in labels for found in each} <= {
        *("method", "route", "status", "le", "outcome", "policy", "mode", "state")
    }
    policies = {found["policy"] for found in labels if "policy" in found}
    assert policies <= {"refuse", "drop_and_count"}
