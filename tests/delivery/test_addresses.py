"""S-01: no URL and no address leads to a place that requests must not reach."""

from __future__ import annotations

import pytest

from waystation.delivery.addresses import AddressGuard
from waystation.errors import ForbiddenAddressError, InvalidInputError

FORBIDDEN_ADDRESSES = [
    "0.0.0.0",
    "0.1.2.3",
    "10.0.0.1",
    "100.64.0.1",
    "127.0.0.1",
    "127.8.8.8",
    "169.254.169.254",
    "172.16.0.1",
    "192.0.0.1",
    "192.0.2.1",
    "192.168.1.1",
    "198.18.0.1",
    "198.51.100.1",
    "203.0.113.1",
    "224.0.0.1",
    "240.0.0.1",
    "255.255.255.255",
    "::",
    "::1",
    "::127.0.0.1",
    "::ffff:127.0.0.1",
    "::ffff:8.8.8.8",
    "::ffff:0:127.0.0.1",
    "::ffff:0:8.8.8.8",
    "4000::1",
    "5f00::1",
    "64:ff9b::7f00:1",
    "64:ff9b:1::1",
    "2001::1",
    "2001:db8::1",
    "2002:7f00:1::1",
    "fc00::1",
    "fd00:ec2::254",
    "fe80::1",
    "fe80::1%eth0",
    "fec0::1",
    "ff02::1",
    "not an address",
]
FORBIDDEN_URLS = [
    "http://127.0.0.1/",
    "http://127.0.0.1./",
    "http://127.1/",
    "http://2130706433/",
    "http://0x7f000001/",
    "http://0x7f.0.0.1/",
    "http://0177.0.0.1/",
    "http://017700000001/",
    "http://0/",
    "http://[::1]/",
    "http://[::ffff:10.0.0.1]/",
    "http://[64:ff9b::a00:1]/",
    "http://169.254.169.254/latest/meta-data/",
    "https://192.168.0.1:8443/hook",
]
MALFORMED_URLS = [
    "",
    "ftp://example.com/",
    "file:///etc/passwd",
    "gopher://example.com/",
    "http:///path",
    "http://user:password@example.com/",
    "http://user@example.com/",
    "http://example.com:0/",
    "http://example.com:99999/",
    "http://exa mple.com/",
    "http://example.com/\r\nHost: evil",
    "http://example.com/\x00",
    "http://ex\u00e4mple.com/",
    "http://example.com\\@127.0.0.1/",
    "http://-example.com/",
    "http://example..com/",
    "http://example.com/#fragment",
    "http://[::1/",
    "http://1.2.3.4.5/",
    "http://" + "a" * 2050,
]


@pytest.mark.parametrize("address", FORBIDDEN_ADDRESSES)
def test_an_address_outside_the_public_internet_is_refused(address: str) -> None:
    assert not AddressGuard().permits(address)


@pytest.mark.parametrize("address", ["8.8.8.8", "1.1.1.1", "2606:4700:4700::1111"])
def test_a_public_address_is_permitted(address: str) -> None:
    assert AddressGuard().permits(address)


@pytest.mark.parametrize("url", FORBIDDEN_URLS)
def test_a_url_with_a_forbidden_address_in_any_spelling_is_refused_at_creation(url: str) -> None:
    with pytest.raises(ForbiddenAddressError) as raised:
        AddressGuard().check_url(url)

    assert raised.value.code == "endpoint.forbidden"


@pytest.mark.parametrize("url", MALFORMED_URLS, ids=range(len(MALFORMED_URLS)))
def test_a_malformed_url_is_refused_at_creation(url: str) -> None:
    with pytest.raises(InvalidInputError) as raised:
        AddressGuard().check_url(url)

    assert raised.value.field == "url"


def test_a_name_passes_creation_and_is_judged_when_it_is_resolved() -> None:
    parts = AddressGuard().check_url("https://hooks.example.com:8443/a?b=c")

    assert (parts.hostname, parts.port) == ("hooks.example.com", 8443)


def test_an_operator_can_allow_networks_and_dev_allows_loopback() -> None:
    assert AddressGuard(["10.1.0.0/16"]).permits("10.1.2.3")
    assert not AddressGuard(["10.1.0.0/16"]).permits("10.2.0.1")
    assert AddressGuard(loopback=True).permits("127.0.0.1")
    assert AddressGuard(loopback=True).permits("::1")
    assert not AddressGuard(loopback=True).permits("10.0.0.1")
    AddressGuard(loopback=True).check_url("http://2130706433/")


LOOPBACK_NAMES = [
    "localhost",
    "localhost.",
    "LocalHost",
    "shop.localhost",
    "a.b.localhost.",
    "ip6-localhost",
    "ip6-loopback",
    "localhost.localdomain",
]


@pytest.mark.parametrize("name", LOOPBACK_NAMES)
def test_check_url_with_a_name_of_this_machine_is_refused_at_creation(name: str) -> None:
    url = f"http://{name}:8080/hook"

    with pytest.raises(ForbiddenAddressError):
        AddressGuard().check_url(url)
    with pytest.raises(ForbiddenAddressError):
        AddressGuard(["10.0.0.0/8"]).check_url(url)

    AddressGuard(loopback=True).check_url(url)
    AddressGuard(["::1/128"]).check_url(url)


@pytest.mark.parametrize("name", ["localhost.example.com", "notlocalhost", "my-localhost.net"])
def test_check_url_with_a_name_that_only_looks_like_this_machine_passes(name: str) -> None:
    AddressGuard().check_url(f"http://{name}/")
