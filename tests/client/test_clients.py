"""Both clients, with the same names, against a real station."""

from __future__ import annotations

import asyncio
import inspect
import itertools
import threading
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta

import pytest
from msgspec.structs import replace

from tests.helpers.server import background_station
from tests.helpers.store_faults import Fate, proxy_to
from waystation import AsyncWaystation, Waystation, errors
from waystation.client.async_channels import AsyncChannels
from waystation.client.sync_channels import Channels
from waystation.config import AuthConfig, ChannelConfig, ChannelRule, Config, HttpConfig
from waystation.store.address import Address
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
        with pytest.raises(errors.SubscriberNotFoundError):
            await client.channels.fetch("orders", "me")


def test_many_messages_are_published_in_order_in_as_few_requests_as_it_takes(
    station: Station,
) -> None:
    with Waystation(station.url) as client:
        client.channels.subscribe("orders", "me")
        large = [(f"large-{number}", "x" * 100_000) for number in range(7)]
        small = [(f"small-{number}", number) for number in range(1200)]

        done = client.channels.publish_many("orders", [*large, *small, ("", "unnamed")])

        assert [each.clock for each in done] == list(range(1, 1209))
        assert {each.outcome for each in done} == {"accepted"}
        batch = client.channels.fetch("orders", "me", limit=2000)
        assert [each.id for each in batch.messages] == [each.id for each in done]
        assert done[-1].id.startswith("msg-")
        assert batch.messages[-1].content == "unnamed"
        assert client.channels.publish_many("orders", []) == []


@pytest.mark.parametrize(
    ("messages", "kind"),
    [
        ([("a", 1), ("Bad Id", 2)], errors.InvalidInputError),
        ([("a", 1), ("b", b"{")], errors.MessageMalformedError),
        ([("a", 1), ("b", b'2},{"id":"forged","content":3')], errors.MessageMalformedError),
        ([("a", 1), ("b", "x" * 2_000_000)], errors.TooLargeError),
    ],
    ids=["bad id", "not json", "two for one", "too large"],
)
def test_a_batch_with_a_bad_message_is_refused(
    station: Station, messages: list[tuple[str, object]], kind: type[errors.WaystationError]
) -> None:
    with Waystation(station.url) as client:
        with pytest.raises(kind):
            client.channels.publish_many("orders", messages)

        # Only one that the station itself found too large comes after others were published.
        published = [each.clock for each in client.channels.channels()]
        assert published == ([1] if kind is errors.TooLargeError else [])


def test_a_full_channel_is_an_error_only_when_nothing_found_room(
    settings: Config,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("waystation.client.messages.BATCH_MESSAGES_MAX", 2)
    rules = (ChannelRule(pattern="orders", backlog_max=4),)
    with (
        background_station(replace(settings, channels=ChannelConfig(rules=rules))) as full,
        Waystation(full.url) as client,
    ):
        messages = [(f"m-{number}", number) for number in range(7)]

        some = client.channels.publish_many("orders", messages)

        assert [each.outcome for each in some] == ["accepted"] * 4 + ["full"] * 3
        with pytest.raises(errors.ChannelFullError):
            client.channels.publish_many("orders", messages[4:])


def test_channels_and_subscribers_are_listed_each_once_whatever_the_pages(
    station: Station,
) -> None:
    with Waystation(station.url) as client:
        for number in range(30):
            client.channels.subscribe(f"ch-{number}", "me")
        client.channels.publish("ch-7", 1)
        client.channels.subscribe("ch-7", "late")

        listed = {each.name: each.clock for each in client.channels.channels()}
        subscribers = {each.name: each.lag for each in client.channels.subscribers("ch-7")}

        assert listed == {f"ch-{number}": int(number == 7) for number in range(30)}
        assert subscribers == {"me": 1, "late": 0}
        assert list(client.channels.subscribers("nowhere")) == []


def test_a_subscriber_reads_on_where_it_is_moved_to(station: Station) -> None:
    with Waystation(station.url) as client:
        client.channels.subscribe("orders", "me")
        client.channels.publish_many("orders", [("", number) for number in range(5)])

        def unread() -> list[object]:
            return [each.content for each in client.channels.fetch("orders", "me").messages]

        assert client.channels.seek("orders", "me", to="end").unread == 0
        assert unread() == []
        assert client.channels.seek("orders", "me", to="beginning").cursor == 0
        assert unread() == [0, 1, 2, 3, 4]
        assert client.channels.seek("orders", "me", clock=3).unread == 2
        an_hour_ago = datetime.now(UTC) - timedelta(hours=1)
        assert client.channels.seek("orders", "me", since=an_hour_ago).unread == 5
        with pytest.raises(errors.InvalidInputError):
            client.channels.seek("orders", "me", to="end", clock=3)
        with pytest.raises(errors.SubscriberNotFoundError):
            client.channels.seek("orders", "nobody", to="end")


async def test_the_asynchronous_client_looks_after_channels_too(station: Station) -> None:
    async with AsyncWaystation(station.url) as client:
        await client.channels.subscribe("orders", "me")
        (done,) = await client.channels.publish_many("orders", [("m-1", 1.0)])
        sought = await client.channels.seek("orders", "me", to="beginning")
        channels = [each.name async for each in client.channels.channels()]
        lags = [each.lag async for each in client.channels.subscribers("orders")]

        assert (done.id, done.outcome, done.clock) == ("m-1", "accepted", 1)
        assert (sought.unread, channels, lags) == (1, ["orders"], [1])


async def test_a_batch_whose_reply_was_lost_is_repeated_by_the_client_and_doubles_nothing(
    station: Station,
) -> None:
    port = int(station.url.rpartition(":")[2])
    async with (
        proxy_to(Address(host="127.0.0.1", port=port)) as proxy,
        AsyncWaystation(f"http://127.0.0.1:{proxy.address.port}") as client,
        AsyncWaystation(station.url) as direct,
    ):
        await direct.channels.subscribe("orders", "me")
        await proxy.set_fates(replies=Fate.CUT)
        messages = [(f"m-{number}", number) for number in range(3)]
        publishing = asyncio.ensure_future(client.channels.publish_many("orders", messages))
        await asyncio.wait_for(proxy.met.wait(), timeout=5)
        await proxy.set_fates()

        done = await asyncio.wait_for(publishing, timeout=10)

        assert [(each.outcome, each.clock) for each in done] == [
            ("duplicate", clock) for clock in (1, 2, 3)
        ]
        batch = await direct.channels.fetch("orders", "me")
        assert [each.content for each in batch.messages] == [0, 1, 2]


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
        (lambda c: c.fetch("orders", "nobody"), errors.SubscriberNotFoundError),
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
        Station(time_machine=False, auth=AuthConfig(insecure=False)).__enter__()


async def test_nobody_at_the_address_is_told_after_a_few_tries(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("waystation.client.sync_caller._PAUSES_SECONDS", (0.01,))
    monkeypatch.setattr("waystation.client.async_caller._PAUSES_SECONDS", (0.01,))
    told = pytest.raises(errors.StationUnreachableError, match="Connection refused")
    with Waystation("http://127.0.0.1:1") as client, told:
        client.channels.subscribe("orders", "me")
    async with AsyncWaystation("http://127.0.0.1:1") as other:
        with told:
            await other.channels.subscribe("orders", "me")


@pytest.mark.parametrize("url", ["127.0.0.1:7070", "localhost", "ftp://station", "http://", "//a"])
def test_what_is_no_address_of_a_station_is_told_at_once(url: str) -> None:
    for client in (Waystation, AsyncWaystation):
        with pytest.raises(errors.SettingsError, match="is no address"):
            client(url)


async def test_acknowledging_an_empty_batch_changes_nothing(station: Station) -> None:
    with Waystation(station.url) as client:
        client.channels.subscribe("orders", "me")
        client.channels.ack("orders", "me", client.channels.fetch("orders", "me").handle)
    async with AsyncWaystation(station.url) as other:
        await other.channels.ack(
            "orders", "me", (await other.channels.fetch("orders", "me")).handle
        )
        await other.channels.publish("orders", 7)
        assert len((await other.channels.fetch("orders", "me")).messages) == 1


def test_a_station_that_comes_back_is_found_again(
    settings: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    with background_station(settings) as first:
        again = replace(settings, http=HttpConfig(port=first.port))
        client = Waystation(first.url)
        client.channels.subscribe("orders", "me")
    with ExitStack() as stack:
        stack.callback(client.close)
        pauses: list[float] = []

        def come_back(seconds: float) -> None:
            """In the second pause of the client, however long that takes."""
            pauses.append(seconds)
            if len(pauses) == 2:
                stack.enter_context(background_station(again))

        monkeypatch.setattr(client.channels._caller._transport, "sleep", come_back)
        client.channels.subscribe("orders", "me")
        assert client.channels.fetch("orders", "me").messages == []
        assert len(pauses) == 2


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
