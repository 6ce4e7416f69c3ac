"""No project sees another's data, and no name reaches beyond its own key in the store (S-09)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import pytest
import redis
from msgspec.structs import replace

from tests.helpers.http import Answer, ask
from tests.helpers.server import Keys, background_station, make_keys
from waystation.config import AuthConfig, Config

#: Each could mean something to the store, to a path or to a log if it were let through.
ODD_NAMES = [
    "*",
    "a*",
    "?",
    "[a-z]",
    "{a}",
    "}",
    "a}b{c",
    "{",
    "a:b",
    "a.b",
    "shop.orders",
    "shop.",
    ".",
    "..",
    "a b",
    "a\r\nDEL x",
    "a\0b",
    "a\\b",
    'a"b',
    "a'b",
    "$(a)",
    "<script>",
    "a%2e",
    "ä",
    "\u202ea",
    "A",
    "-a",
    "_a",
    "a" * 64,
]


@dataclass(frozen=True)
class Shared:
    """A station that two projects use, and its store in plain view."""

    url: str
    keys: Keys
    store: redis.Redis

    def stored(self) -> set[bytes]:
        """The keys of all channels of all projects."""
        return set(self.store.keys("c.*"))


@pytest.fixture(scope="module")
def shared(module_store_settings: Config) -> Iterator[Shared]:
    keys = make_keys(module_store_settings.data_dir)
    settings = replace(module_store_settings, auth=AuthConfig(insecure=False))
    with background_station(settings) as running:
        path = running.node.opened.store.address.path
        with redis.Redis(unix_socket_path=path) as store:
            yield Shared(running.url, keys, store)


class Tenant:
    """A client with the keys of one project."""

    def __init__(self, shared: Shared, *, write: str, admin: str) -> None:
        self._url = shared.url
        self.write = write
        self.admin = admin

    def use(self, method: str, path: str, body: bytes = b"") -> Answer:
        """Asks with the key for daily use."""
        return ask(self._url, method, path, body, key=self.write)

    def manage(self, method: str, path: str, body: bytes = b"") -> Answer:
        """Asks with the key that manages the project."""
        return ask(self._url, method, path, body, key=self.admin)

    def fetched(self, channel: str) -> list[Any]:
        """What is unread on a channel."""
        answer = self.use("GET", f"/channel/{channel}/subscription/polling/s")
        assert answer.status == 200, answer
        return [message["content"] for message in answer.json()["messages"]]


@pytest.fixture
def default(shared: Shared) -> Tenant:
    return Tenant(shared, write=shared.keys.write, admin=shared.keys.admin)


@pytest.fixture
def shop(shared: Shared) -> Tenant:
    return Tenant(shared, write=shared.keys.shop_write, admin=shared.keys.shop_admin)


def id_of(key: str) -> str:
    return key.split("_")[1]


def test_the_same_name_is_another_channel_in_another_project(
    default: Tenant, shop: Tenant, channel: str
) -> None:
    subscriber = f"/channel/{channel}/subscription/polling/s"
    for tenant in (default, shop):
        assert tenant.use("PUT", subscriber).status == 200
    default.use("PUT", f"/channel/{channel}/message/m", b'"of default"')
    shop.use("PUT", f"/channel/{channel}/message/m", b'"of shop"')

    assert default.fetched(channel) == ["of default"]
    assert shop.fetched(channel) == ["of shop"]

    # What one does to it, the other does not notice.
    handle = shop.use("GET", subscriber).json()["ackHandle"]
    assert shop.use("DELETE", f"{subscriber}/message?ackHandle={handle}").status == 204
    assert (default.fetched(channel), shop.fetched(channel)) == (["of default"], [])
    assert shop.use("DELETE", subscriber).status == 200
    assert default.fetched(channel) == ["of default"]


def test_a_subscriber_of_another_project_is_not_there(
    default: Tenant, shop: Tenant, channel: str
) -> None:
    subscriber = f"/channel/{channel}/subscription/polling/s"
    default.use("PUT", subscriber)
    default.use("PUT", f"/channel/{channel}/message/m", b"1")
    handle = default.use("GET", subscriber).json()["ackHandle"]

    for answer in (
        shop.use("GET", subscriber),
        shop.use("DELETE", f"{subscriber}/message?ackHandle={handle}"),
    ):
        assert answer.status == 404
        assert answer.json()["code"] == "dsps.storage.subscription-not-found"
    assert default.fetched(channel) == [1]


def test_keys_of_another_project_are_neither_shown_nor_revoked(
    shared: Shared, default: Tenant, shop: Tenant
) -> None:
    for tenant, other in ((shop, default), (default, shop)):
        shown = tenant.manage("GET", "/v1/keys").json()
        assert id_of(tenant.admin) in {key["id"] for key in shown}
        assert not {id_of(other.admin), id_of(other.write)} & {key["id"] for key in shown}
        for key in (other.admin, other.write):
            answer = tenant.manage("DELETE", f"/v1/keys/{id_of(key)}")
            assert (answer.status, answer.json()["code"]) == (404, "not-found")
            # Told exactly as of a key that never was.
            never = tenant.manage("DELETE", f"/v1/keys/{'0' * 16}")
            assert answer.json()["detail"] == never.json()["detail"].replace("0" * 16, id_of(key))
    assert shop.manage("GET", "/v1/keys").status == 200
    assert default.manage("GET", "/v1/keys").status == 200


def test_a_key_is_made_in_its_makers_project_whatever_the_body_says(shop: Tenant) -> None:
    refused = shop.manage("POST", "/v1/keys", b'{"scope":"admin","project":"default"}')
    assert (refused.status, refused.json()["code"]) == (400, "input.invalid")

    assert shop.manage("POST", "/v1/keys", b'{"scope":"read"}').json()["project"] == "shop"


def test_only_project_default_sees_and_makes_projects(default: Tenant, shop: Tenant) -> None:
    def names(tenant: Tenant) -> set[str]:
        return {project["name"] for project in tenant.manage("GET", "/v1/projects").json()}

    assert names(shop) == {"shop"}
    assert shop.manage("POST", "/v1/projects", b'{"name":"mine"}').status == 404
    assert names(default) >= {"default", "shop"}
    assert "mine" not in names(default)


@pytest.mark.parametrize("name", ODD_NAMES)
def test_an_odd_name_is_400_everywhere_and_leaves_no_key_in_the_store(
    shared: Shared, default: Tenant, shop: Tenant, name: str
) -> None:
    before, odd = shared.stored(), quote(name, safe="")
    for tenant in (default, shop):
        for method, path in (
            ("PUT", f"/channel/{odd}/message/m"),
            ("PUT", f"/channel/c/message/{odd}"),
            ("PUT", f"/channel/{odd}/subscription/polling/s"),
            ("PUT", f"/channel/c/subscription/polling/{odd}"),
            ("GET", f"/channel/{odd}/subscription/polling/s"),
            ("GET", f"/channel/c/subscription/polling/{odd}"),
            ("DELETE", f"/channel/{odd}/subscription/polling/s"),
            ("DELETE", f"/channel/c/subscription/polling/{odd}"),
            ("DELETE", f"/channel/{odd}/subscription/polling/s/message?ackHandle=e30="),
            ("DELETE", f"/channel/c/subscription/polling/{odd}/message?ackHandle=e30="),
        ):
            answer = tenant.use(method, path, b"1")
            assert answer.status == 400, (method, path, answer)
            assert answer.json()["error"].startswith("Invalid "), (method, path, answer)
    assert shared.stored() == before


@pytest.mark.parametrize("name", ["*", "a.b", "{a}", "a:b", "", "A", "a" * 64, "a b", "..", "ä"])
def test_an_odd_project_name_is_400_and_makes_no_project(default: Tenant, name: str) -> None:
    before = default.manage("GET", "/v1/projects").json()

    answer = default.manage("POST", "/v1/projects", b'{"name":"%b"}' % name.encode())

    assert (answer.status, answer.json()["code"]) == (400, "input.invalid")
    assert default.manage("GET", "/v1/projects").json() == before


def test_every_key_in_the_store_bears_the_tag_of_its_project(
    shared: Shared, default: Tenant, shop: Tenant, channel: str
) -> None:
    before = shared.stored()
    for tenant in (default, shop):
        tenant.use("PUT", f"/channel/{channel}/subscription/polling/s")
        tenant.use("PUT", f"/channel/{channel}/message/m", b"1")

    new = {key.decode() for key in shared.stored() - before}
    kinds = ("clock", "m.1", "mid.m", "r.s")
    tags = (f"{{{channel}}}", f"{{shop.{channel}}}")
    assert new == {f"c.{tag}.{kind}" for tag in tags for kind in kinds}
