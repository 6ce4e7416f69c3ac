"""Every route of a guarded server, asked with every kind of wrong key (S-08).

The operations are those of the OpenAPI document that the server itself serves, so a route that is
added later is asked as well.
"""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from tests.api.conftest import Guarded
from tests.helpers.http import Answer, Wire, ask, async_ask, wire
from tests.helpers.server import Keys
from waystation.telemetry import metrics

PUBLIC = {
    "GET /",
    "GET /livez",
    "GET /openapi.json",
    "GET /probe/liveness",
    "GET /probe/readiness",
    "GET /readyz",
    "GET /reference",
}
#: These have a secret of their own in the address: tests/transactions/test_callbacks.py.
CALLED_BACK = {"POST /v1/callbacks/{id}/{place}/{token}"}
#: A browser can set no header there, so `access_token` is taken: tests/api/test_stream_access.py.
LIVE = {
    "/v1/channels/{channel}/subscribers/{subscriber}/events",
    "/v1/channels/{channel}/subscribers/{subscriber}/socket",
}
#: What a revoked key may still take to be refused.
REVOKED_WITHIN_SECONDS = 5.0
AT_ONCE = 16


@dataclass(frozen=True)
class Operation:
    """One method on one path, with names in the place of its parameters."""

    method: str
    template: str
    public: bool

    @property
    def name(self) -> str:
        return f"{self.method} {self.template}"

    @property
    def path(self) -> str:
        parts = ("x" if part.startswith("{") else part for part in self.template.split("/"))
        return "/".join(parts)

    @property
    def is_dsps(self) -> bool:
        return self.template.startswith("/channel/")

    @property
    def is_admin(self) -> bool:
        return self.template.startswith("/admin/")

    @property
    def scope(self) -> str:
        """The least that a key must allow."""
        if self.is_admin:
            return "admin"
        if self.template.startswith("/v1/topics"):
            # Definitions are for who manages the project.
            produces = self.template.endswith("/messages")
            return "read" if self.method == "GET" else "write" if produces else "admin"
        if self.template.startswith(("/v1/nodes", "/v1/pipelines")):
            return "read" if self.method == "GET" else "admin"
        if self.template.startswith("/v1/pools"):
            ending = self.template.rpartition("/")[2]
            manages = ending in ("pools", "{pool}", "purge", "redrive", "evict")
            return "read" if self.method == "GET" else "admin" if manages else "write"
        if self.template.startswith("/v1/subscriptions"):
            # Definitions, and what cannot be taken back.
            ending = self.template.rpartition("/")[2]
            defines = ending in ("subscriptions", "{subscription}", "purge", "reset", "rotate")
            return "read" if self.method == "GET" else "admin" if defines else "write"
        used = ("/v1/channels", "/v1/transactions", "/v1/webhooks", "/v1/why")
        if self.template.startswith("/v1/") and not self.template.startswith(used):
            return "admin"
        return "read" if self.method == "GET" else "write"


def operations(guarded: Guarded) -> list[Operation]:
    """Everything in the document."""
    document = ask(guarded.url, "GET", "/openapi.json").json()
    found = [
        Operation(method.upper(), path, public=operation["security"] == [])
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]
    assert len(found) > len(PUBLIC) + 10
    return found


@pytest.fixture
def behind_keys(guarded: Guarded) -> list[Operation]:
    """The operations that need a key."""
    return [operation for operation in operations(guarded) if not operation.public]


@pytest.fixture
def connection(guarded: Guarded) -> Iterator[Wire]:
    with wire(guarded.url) as opened:
        yield opened


def assert_refused(answer: Answer, operation: Operation, *, status: int = 401) -> None:
    """No key that counts: 401, or 403 for one that may not do this; DSPS says 403 for both."""
    told = (operation.name, answer)
    if operation.is_admin:
        assert (answer.status, answer.json()) == (403, {"error": ""}), told
        return
    if operation.is_dsps:
        assert answer.status == 403, told
        assert answer.header("content-type") == "application/json", told
        assert answer.json() == {"error": "Unauthorized", "code": "dsps.auth.rejected"}, told
        return
    assert answer.status == status, told
    assert answer.header("content-type") == "application/problem+json", told
    code = {401: "auth.required", 403: "auth.forbidden"}[status]
    assert (answer.json()["status"], answer.json()["code"]) == (status, code), told
    if status == 401:
        assert answer.header("www-authenticate") == 'Bearer realm="waystation"', told


async def assert_all_refused(
    guarded: Guarded, asked: list[Operation], headers: dict[str, str]
) -> None:
    """Many at once: strangers wait for one look at the keys together."""
    for first in range(0, len(asked), AT_ONCE):
        few = asked[first : first + AT_ONCE]
        answers = await asyncio.gather(
            *(async_ask(guarded.url, each.method, each.path, b"", headers) for each in few)
        )
        for operation, answer in zip(few, answers, strict=True):
            assert_refused(answer, operation)


def is_refusal(answer: Answer) -> bool:
    return answer.status in (401, 403)


def basic(text: str) -> str:
    return f"Basic {base64.b64encode(text.encode()).decode()}"


def cut(key: str) -> tuple[str, str]:
    """Id and secret."""
    _, key_id, secret = key.split("_")
    return key_id, secret


#: Headers that must not open anything; where they hold a key, it is one that could open all.
CREDENTIALS: dict[str, Callable[[Keys], dict[str, str]]] = {
    "nothing": lambda keys: {},
    "an empty header": lambda keys: {"authorization": ""},
    "the scheme alone": lambda keys: {"authorization": "Bearer"},
    "a word": lambda keys: {"authorization": "Bearer secret"},
    "an id without a secret": lambda keys: {"authorization": f"Bearer ws_{cut(keys.admin)[0]}"},
    "a key that lacks its end": lambda keys: {"authorization": f"Bearer {keys.admin[:-1]}"},
    "a key with more behind it": lambda keys: {"authorization": f"Bearer {keys.admin}0"},
    "a key in upper case": lambda keys: {"authorization": f"Bearer {keys.admin.upper()}"},
    "two keys": lambda keys: {"authorization": f"Bearer {keys.admin} {keys.admin}"},
    "a list of keys": lambda keys: {"authorization": f"Bearer {keys.admin}, Bearer {keys.admin}"},
    "a key behind two spaces": lambda keys: {"authorization": f"Bearer  {keys.admin}"},
    "a key in quotes": lambda keys: {"authorization": f'Bearer "{keys.admin}"'},
    "letters that are no ASCII": lambda keys: {"authorization": f"Bearer {keys.admin[:-1]}\xb2"},
    "an unknown key": lambda keys: {"authorization": f"Bearer {keys.unknown}"},
    "a wrong secret": lambda keys: {
        "authorization": f"Bearer ws_{cut(keys.admin)[0]}_{cut(keys.unknown)[1]}"
    },
    "the secret of another key": lambda keys: {
        "authorization": f"Bearer ws_{cut(keys.admin)[0]}_{cut(keys.write)[1]}"
    },
    "a revoked key": lambda keys: {"authorization": f"Bearer {keys.revoked}"},
    "an expired key": lambda keys: {"authorization": f"Bearer {keys.expired}"},
    "a key without a scheme": lambda keys: {"authorization": keys.admin},
    "bearer in lower case": lambda keys: {"authorization": f"bearer {keys.admin}"},
    "bearer in upper case": lambda keys: {"authorization": f"BEARER {keys.admin}"},
    "another scheme": lambda keys: {"authorization": f"Token {keys.admin}"},
    "the key as a user": lambda keys: {"authorization": basic(f"{keys.admin}:")},
    "the key as a password": lambda keys: {"authorization": basic(f"admin:{keys.admin}")},
    "an unsigned token": lambda keys: {"authorization": "Bearer eyJhbGciOiJub25lIn0.e30."},
    "the key in another header": lambda keys: {"x-api-key": keys.admin},
    "the key for a proxy": lambda keys: {"proxy-authorization": f"Bearer {keys.admin}"},
    "the key in a cookie": lambda keys: {"cookie": f"key={keys.admin}; authorization={keys.admin}"},
}


def test_the_public_routes_are_these_and_answer_without_a_key(guarded: Guarded) -> None:
    public = [operation for operation in operations(guarded) if operation.public]

    assert {operation.name for operation in public} == PUBLIC | CALLED_BACK
    for operation in public:
        status = 404 if operation.name in CALLED_BACK else 200
        assert ask(guarded.url, operation.method, operation.path).status == status, operation.name


@pytest.mark.parametrize("kind", CREDENTIALS)
async def test_without_a_valid_key_every_other_route_refuses(
    guarded: Guarded, behind_keys: list[Operation], kind: str
) -> None:
    await assert_all_refused(guarded, behind_keys, CREDENTIALS[kind](guarded.keys))


def test_a_key_in_the_query_opens_nothing_but_live_streams_by_its_one_name(
    guarded: Guarded, behind_keys: list[Operation], connection: Wire
) -> None:
    key = guarded.keys.admin
    for operation in behind_keys:
        query = f"?key={key}&authorization=Bearer+{key}&Access_Token={key}"
        if operation.template not in LIVE:
            query += f"&access_token={key}"
        assert_refused(connection.ask(operation.method, operation.path + query, b""), operation)


@pytest.mark.parametrize(
    ("held", "allows"),
    [("read", {"read"}), ("write", {"read", "write"}), ("admin", {"read", "write", "admin"})],
)
def test_a_key_opens_the_routes_of_its_scope_and_no_others(
    guarded: Guarded, behind_keys: list[Operation], connection: Wire, held: str, allows: set[str]
) -> None:
    key: str = getattr(guarded.keys, held)
    seen = set()
    for operation in behind_keys:
        answer = connection.ask(operation.method, operation.path, b"", key=key)
        if operation.scope in allows:
            assert not is_refusal(answer), (operation.name, answer)
        else:
            assert_refused(answer, operation, status=403)
        seen.add(operation.scope)
    assert seen == {"read", "write", "admin"}


def test_a_refused_publish_publishes_nothing(guarded: Guarded, channel: str) -> None:
    subscriber, message = (
        f"/channel/{channel}/subscription/polling/s",
        f"/channel/{channel}/message/m",
    )
    ask(guarded.url, "PUT", subscriber, b"", key=guarded.keys.write)

    for key in ("", guarded.keys.unknown, guarded.keys.revoked, guarded.keys.read):
        assert ask(guarded.url, "PUT", message, b"1", key=key).status == 403

    fetched = ask(guarded.url, "GET", subscriber, key=guarded.keys.read).json()
    assert fetched == {"channelID": channel, "messages": [], "moreMessages": False}


#: The same path in other clothes. Some arrive at the route, some nowhere; none without a key.
TRICKS: dict[str, Callable[[str], str]] = {
    "a slash more in front": lambda path: f"/{path}",
    "a slash more inside": lambda path: path[0] + path[1:].replace("/", "//", 1),
    "a slash at the end": lambda path: f"{path}/",
    "a dot in front": lambda path: f"/.{path}",
    "a dot at the end": lambda path: f"{path}/.",
    "up and down": lambda path: f"/livez/..{path}",
    "up and down, escaped": lambda path: f"/livez/%2e%2e{path}",
    "up and down, escaped slashes": lambda path: f"/livez%2f..%2f{path[1:]}",
    "up and down, escaped twice": lambda path: f"/livez/%252e%252e{path}",
    "up from a probe": lambda path: f"/probe/liveness/../..{path}",
    "a backslash": lambda path: f"/livez\\..{path}".replace("/", "\\", 1),
    "upper case": str.upper,
    "an escaped letter": lambda path: f"/%{ord(path[1]):02x}{path[2:]}",
    "escaped slashes": lambda path: "/" + path[1:].replace("/", "%2f"),
    "an escaped end of text": lambda path: f"{path}%00",
    "an escaped end of line": lambda path: f"{path}%0d%0a",
    "an escaped question mark": lambda path: f"{path}%3f/livez",
    "a parameter of the path": lambda path: f"{path};/livez",
    "a public path in the query": lambda path: f"{path}?/livez",
    "a fragment": lambda path: f"{path}#/livez",
    "a whole address": lambda path: f"http://station.test{path}",
    "another host": lambda path: f"http://127.0.0.1:1{path}",
    "a suffix": lambda path: f"{path}.json",
}


@pytest.mark.parametrize("trick", TRICKS)
def test_no_trick_with_the_path_gets_around_the_key(
    guarded: Guarded, behind_keys: list[Operation], trick: str
) -> None:
    for operation in behind_keys:
        target = TRICKS[trick](operation.path)
        answer = ask(guarded.url, operation.method, target, b"")
        assert 400 <= answer.status < 500, (operation.name, target, answer)


@pytest.mark.parametrize("method", ["HEAD", "OPTIONS", "PATCH", "TRACE", "PROPFIND", "LINK"])
def test_no_other_method_gets_around_the_key(
    guarded: Guarded, behind_keys: list[Operation], method: str
) -> None:
    for path in sorted({operation.path for operation in behind_keys}):
        answer = ask(guarded.url, method, path, b"")
        assert 400 <= answer.status < 500, (path, answer)


async def test_a_revoked_key_stops_working_within_five_seconds_on_every_route(
    guarded: Guarded, behind_keys: list[Operation], connection: Wire
) -> None:
    made = create_key(guarded, b'{"scope":"admin"}')
    assert connection.ask("GET", "/v1/keys", key=made["key"]).status == 200
    revoked = ask(guarded.url, "DELETE", f"/v1/keys/{made['id']}", key=guarded.keys.admin)
    assert revoked.status == 204

    until = time.monotonic() + REVOKED_WITHIN_SECONDS
    while not is_refusal(connection.ask("GET", "/v1/keys", key=made["key"])):
        assert time.monotonic() < until, "the key still works"
        time.sleep(0.02)

    headers = {"authorization": f"Bearer {made['key']}"}
    await assert_all_refused(guarded, behind_keys, headers)


def test_a_key_works_until_it_expires_and_not_longer(
    guarded: Guarded, behind_keys: list[Operation], connection: Wire
) -> None:
    expires_ms = time.time_ns() // 1_000_000 + 1_500
    made = create_key(guarded, b'{"scope":"admin","expires_ms":%d}' % expires_ms)
    assert made["expires_ms"] == expires_ms

    asked_ms = 0
    while not is_refusal(connection.ask("GET", "/v1/keys", key=made["key"])):
        assert asked_ms < expires_ms + 1_000, "the key still works"
        time.sleep(0.02)
        asked_ms = time.time_ns() // 1_000_000

    assert time.time_ns() // 1_000_000 >= expires_ms
    for operation in behind_keys:
        assert_refused(
            connection.ask(operation.method, operation.path, b"", key=made["key"]), operation
        )


def create_key(guarded: Guarded, wish: bytes) -> dict[str, str]:
    answer = ask(guarded.url, "POST", "/v1/keys", wish, key=guarded.keys.admin)
    assert answer.status == 201, answer
    made: dict[str, str] = answer.json()
    return made


def test_metrics_for_a_project_key_show_its_own_names_alone(guarded: Guarded) -> None:
    pools = ("default.our-pool", "shop.their-pool", "shopping.other-pool")
    for name in pools:
        metrics.pool_acked.of(name, "done").inc()
    subscriptions = ("our-subscription", "shop.their-subscription", "shopping.other-subscription")
    for name in subscriptions:
        metrics.subscription_doubles.of(name).inc()
        metrics.subscription_figures["lag_messages"].labels(name, "0").set(1)

    project = ask(guarded.url, "GET", "/metrics", key=guarded.keys.shop_write)
    default = ask(guarded.url, "GET", "/metrics", key=guarded.keys.read)
    operator = ask(guarded.url, "GET", "/metrics", key=guarded.keys.admin)

    shown = {name for name in (*pools, *subscriptions) if f'"{name}"' in project.body.decode()}
    assert shown == {"shop.their-pool", "shop.their-subscription"}
    shown = {name for name in (*pools, *subscriptions) if f'"{name}"' in default.body.decode()}
    assert shown == {"default.our-pool", "our-subscription"}
    for body in (project.body, default.body):
        assert b"waystation_http_requests" not in body
    assert project.body.endswith(b"# EOF\n")
    for name in (*pools, *subscriptions):
        assert f'"{name}"' in operator.body.decode()
    assert b"waystation_http_requests" in operator.body
