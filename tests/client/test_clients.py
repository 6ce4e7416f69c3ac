"""Both clients, with the same names, against a real station."""

from __future__ import annotations

import inspect
import itertools
import threading

import pytest

from waystation import AsyncWaystation, Waystation, errors
from waystation.client.async_channels import AsyncChannels
from waystation.client.sync_channels import Channels
from waystation.settings import AuthSettings, HttpSettings
from waystation.testing import Station


def test_a_message_goes_from_publisher_to_subscriber_byte_for_byte(station: Station) -> None:
    with Waystation(station.url) as client:
        client.channels.subscribe("orders", "me")
        sent = client.channels.publish("orders", b'{"total": 1.0, "big": 12345678901234567890}')

        batch = client.channels.fetch("orders", "me")

        (message,) = batch.messages
        assert message.id == sent
        assert bytes(message.raw) == b'{"total": 1.0, "big": 12345678901234567890}'
        assert message.content == {"total": 1.0, "big": 12345678901234567890}
        client.channels.ack("orders", "me", batch.handle)
        assert client.channels.fetch("orders", "me").messages == []


def test_a_message_id_of_your_own_publishes_just_once(station: Station) -> None:
    with Waystation(station.url) as client:
        client.channels.subscribe("orders", "me")
        client.channels.publish("orders", "first", message_id="order-7")
        client.channels.publish("orders", "second", message_id="order-7")

        batch = client.channels.fetch("orders", "me")

        assert [message.content for message in batch.messages] == ["first"]


def test_listen_yields_messages_as_they_come_and_acknowledges_whole_batches(
    station: Station,
) -> None:
    with Waystation(station.url) as client:
        client.channels.subscribe("orders", "me")
        publisher = threading.Thread(
            target=lambda: [client.channels.publish("orders", number) for number in range(10)]
        )
        publisher.start()

        heard = client.channels.listen("orders", "me", timeout=5, limit=3)
        got = [message.content for message in itertools.islice(heard, 10)]

        publisher.join()
        assert got == list(range(10))


async def test_the_asynchronous_client_does_the_same(station: Station) -> None:
    async with AsyncWaystation(station.url) as client:
        await client.channels.subscribe("orders", "me")
        await client.channels.publish("orders", {"total": 7})
        batch = await client.channels.fetch("orders", "me", timeout=1)
        await client.channels.ack("orders", "me", batch.handle)
        await client.channels.unsubscribe("orders", "me")

        assert batch.messages[0].content == {"total": 7}
        with pytest.raises(errors.SubscriptionNotFoundError):
            await client.channels.fetch("orders", "me")


def test_both_clients_have_the_same_verbs_with_the_same_parameters() -> None:
    def verbs(kind: type) -> dict[str, list[str]]:
        return {
            name: list(inspect.signature(member).parameters)
            for name, member in inspect.getmembers(kind, inspect.isfunction)
        }

    assert verbs(AsyncChannels) == verbs(Channels)


@pytest.mark.parametrize(
    ("verb", "kind"),
    [
        (lambda c: c.publish("Bad Name", 1), errors.InvalidInputError),
        (lambda c: c.publish("orders", b"{"), errors.MessageMalformedError),
        (lambda c: c.fetch("orders", "nobody"), errors.SubscriptionNotFoundError),
        (lambda c: c.ack("orders", "nobody", "!!"), errors.AckHandleMalformedError),
        (lambda c: c.publish("orders", "x" * 2_000_000), errors.TooLargeError),
    ],
    ids=["bad name", "not json", "no subscriber", "bad handle", "too large"],
)
def test_an_error_of_the_station_is_raised_as_its_own_class(
    station: Station, verb: object, kind: type[errors.WaystationError]
) -> None:
    with Waystation(station.url) as client, pytest.raises(kind) as raised:
        verb(client.channels)  # type: ignore[operator]

    assert raised.value.code == kind.code


def test_without_a_key_a_station_that_needs_one_refuses() -> None:
    with pytest.raises(errors.SettingsError, match="keys create"):
        Station(time_machine=False, auth=AuthSettings(insecure=False)).__enter__()


def test_nobody_at_the_address_is_told_after_a_few_tries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("waystation.client.sync_channels._PAUSES_SECONDS", (0.01,))
    with Waystation("http://127.0.0.1:1") as client, pytest.raises(errors.StationUnreachableError):
        client.channels.subscribe("orders", "me")


def test_a_station_that_comes_back_is_found_again() -> None:
    with Station(time_machine=False) as first:
        port = int(first.url.rpartition(":")[2])
        client = Waystation(first.url)
        client.channels.subscribe("orders", "me")
    second = Station(time_machine=False, http=HttpSettings(port=port))
    returning = threading.Timer(0.3, second.__enter__)
    returning.start()
    try:
        client.channels.subscribe("orders", "me")
        assert client.channels.fetch("orders", "me").messages == []
    finally:
        returning.join()
        second.__exit__(None, None, None)
        client.close()


def test_the_key_and_url_come_from_the_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: object, station: Station
) -> None:
    monkeypatch.setenv("WAYSTATION_URL", station.url)
    monkeypatch.setenv("WAYSTATION_KEY_FILE", "/nowhere")

    with pytest.raises(errors.SettingsError, match="WAYSTATION_KEY_FILE"):
        Waystation()
    monkeypatch.delenv("WAYSTATION_KEY_FILE")
    with Waystation() as client:
        client.channels.subscribe("orders", "me")
