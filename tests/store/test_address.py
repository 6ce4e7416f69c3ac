"""Store URLs: their parts, invalid URLs, and errors and logs that do not show the password."""

from __future__ import annotations

import ssl

import pytest

from waystation.errors import SettingsError
from waystation.store.address import parse_address


def test_parse_address_of_full_url_returns_all_parts() -> None:
    address = parse_address("redis://anna:hush@store.example:7001/3")
    assert (address.host, address.port, address.database) == ("store.example", 7001, 3)
    assert address.handshake() == [
        ("AUTH", "anna", "hush"),
        ("SELECT", "3"),
        ("CLIENT", "SETNAME", "waystation"),
    ]
    assert address.tls is None


def test_handshake_of_url_without_parts_omits_them() -> None:
    assert parse_address("redis://localhost").handshake() == [("CLIENT", "SETNAME", "waystation")]
    assert parse_address("redis://:hush@localhost").handshake()[0] == ("AUTH", "hush")


def test_parse_address_of_socket_or_tls_url_returns_path_or_context() -> None:
    assert parse_address("unix:///run/store.sock").path == "/run/store.sock"
    tls = parse_address("rediss://store.example").tls
    assert tls is not None
    assert tls.verify_mode is ssl.CERT_REQUIRED
    unchecked = parse_address("rediss://store.example?ssl_cert_reqs=none").tls
    assert unchecked is not None
    assert unchecked.verify_mode is ssl.CERT_NONE


def test_parse_address_of_cluster_url_returns_each_node() -> None:
    address = parse_address("rediss+cluster://anna:hu@sh@a:7001,b,c:7003/0?ssl_cert_reqs=none")
    assert address.cluster is not None
    places = [(each.host, each.port, each.username) for each in address.cluster.seeds]
    assert places == [("a", 7001, "anna"), ("b", 6379, "anna"), ("c", 7003, "anna")]
    assert all(each.tls is not None and each.cluster is None for each in address.cluster.seeds)
    assert parse_address("redis://a:7001").cluster is None


@pytest.mark.parametrize(
    "url", ["redis+cluster://", "redis+cluster://a,,b", "unix+cluster:///a", "redis+cluster://a:b"]
)
def test_parse_address_of_invalid_cluster_url_is_rejected(url: str) -> None:
    with pytest.raises(SettingsError, match="The store URL is invalid"):
        parse_address(url)


def test_parse_address_of_cluster_url_with_database_is_rejected() -> None:
    with pytest.raises(SettingsError, match="only database 0"):
        parse_address("redis+cluster://a,b/3")


def test_address_text_hides_password() -> None:
    address = parse_address("redis://anna:hush@store.example:7001")
    assert "hush" not in f"{address} {address!r}"


@pytest.mark.parametrize("url", ["http://store", "store:6379", "redis://host:port", ""])
def test_parse_address_of_invalid_url_is_rejected_without_the_url(url: str) -> None:
    with pytest.raises(SettingsError, match="The store URL is invalid") as caught:
        parse_address(url)
    assert "redis://[user:password@]host" in str(caught.value)
