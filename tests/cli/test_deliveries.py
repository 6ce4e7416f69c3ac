"""`waystation deliveries`, as a process of its own against a real station."""

from __future__ import annotations

import json
import subprocess
import time
from typing import Any

import pytest
from msgspec.structs import replace

from tests.cli.conftest import clean_environment, command
from tests.helpers.http import Receiver
from tests.helpers.server import background_station
from waystation import Waystation
from waystation.config import ChannelConfig, ChannelRule, Config, WebhookRule
from waystation.testing.endpoint import FakeEndpoint


def deliveries(url: str, *arguments: str) -> Any:
    done = subprocess.run(
        command("deliveries", *arguments, "--url", url, "--json"),
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.slow
def test_an_operator_finds_out_why_and_sets_it_going_again(settings: Config) -> None:
    with Receiver(FakeEndpoint(plan=[401, 410, 200])) as receiver:
        rule = ChannelRule(pattern=".+", webhooks=(WebhookRule(name="crm", url=receiver.url),))
        settings = replace(settings, channels=ChannelConfig(rules=(rule,)))
        with background_station(settings) as station:
            with Waystation(station.url) as client:
                client.channels.publish("orders", 1, message_id="m-1")
                while not (found := list(client.deliveries.failed())):
                    time.sleep(0.02)
                client.channels.publish("orders", 2, message_id="m-2")
                while client.deliveries.endpoints()[0].state != "disabled":
                    time.sleep(0.02)

            (row,) = deliveries(station.url, "list")
            assert (row["state"], row["failed"], row["waiting"]) == ("disabled", 1, 1)
            (failure,) = deliveries(station.url, "failed")
            assert failure["id"] == found[0].id
            assert failure["cause"] == "the endpoint answered 401"
            attempts = deliveries(station.url, "attempts", "crm", "orders")
            assert [each["status"] for each in attempts] == [401, 410]
            arguments = ("--channel", "orders", "--id", failure["id"])
            assert deliveries(station.url, "redrive", "crm", *arguments) == {"count": 1}
            assert deliveries(station.url, "enable", "crm")["state"] == "enabled"
            with Waystation(station.url) as client:
                while (row := client.deliveries.endpoints()[0]).waiting or row.failed:
                    time.sleep(0.02)
            assert len(receiver.received) == 4
            assert deliveries(station.url, "discard", "crm") == {"count": 0}


def test_people_get_sentences(settings: Config) -> None:
    with background_station(settings) as station:
        for arguments, told in (
            (("list",), "No endpoints"),
            (("failed",), "Nothing has failed"),
        ):
            done = subprocess.run(
                command("deliveries", *arguments, "--url", station.url),
                env=clean_environment(),
                capture_output=True,
                text=True,
                timeout=60,
                check=True,
            )
            assert told in done.stdout


def test_an_id_without_its_channel_is_a_mistake() -> None:
    done = subprocess.run(
        command("deliveries", "redrive", "crm", "--id", "m-1"),
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert "--id needs --channel" in done.stderr
