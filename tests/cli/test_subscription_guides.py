"""What the pages on subscriptions tell people to type does what they say, line by line."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest

from tests.cli.conftest import Run
from tests.cli.test_subscription_commands import QUICK
from tests.cli.test_topic_commands import here  # noqa: F401 (a fixture)
from tests.cli.test_topic_guides import blocks, lines_of
from tests.helpers.http import Receiver
from tests.helpers.waiting import eventually_sync
from tests.test_examples import ROOT
from waystation import Waystation
from waystation.subscriptions.hindrances import HindranceCode
from waystation.subscriptions.states import TRANSITIONS
from waystation.testing import Station
from waystation.testing.endpoint import FakeEndpoint

CONCEPT = ROOT / "docs" / "concepts" / "subscriptions.md"
SUBSCRIBING = ROOT / "docs" / "guides" / "subscribing.md"
DEAD = ROOT / "docs" / "guides" / "dead-letters.md"
RUNNING = ROOT / "docs" / "operating" / "subscriptions.md"
PRINTED_STATION, PRINTED_HOOK = "http://127.0.0.1:7070", "http://127.0.0.1:9000/hook"


@pytest.fixture
def hook() -> Iterator[Receiver]:
    with Receiver(FakeEndpoint(plan=[200])) as receiver:
        yield receiver


class Page:
    """Types the commands of a page, against a station and a hook of the test."""

    def __init__(self, page: Path, here: Run, url: str, hook: Receiver) -> None:  # noqa: F811
        self._here = here
        self._url = url
        self._hook = hook
        self.lines = [line.replace(PRINTED_HOOK, hook.url) for line in lines_of(page, "waystation")]

    def type(self, line: str) -> str:
        words = shlex.split(line, comments=True)[1:]
        done = self._here(*words, "--url", self._url)
        assert done.returncode == 0, (line, done)
        return str(done.stdout)


def run_python(page: Path, url: str, hook: Receiver, **names: Any) -> dict[str, Any]:
    (code,) = blocks(page, "python")
    exec(code.replace(PRINTED_STATION, url).replace(PRINTED_HOOK, hook.url), names)
    return names


def park(client: Waystation, hook: Receiver, *groups: str) -> None:
    """Messages of these groups that could not be delivered; the hook is repaired after that."""
    hook.endpoint.plan = [500]
    for group in groups:
        for n in range(3):
            client.topics.produce("orders", {"n": n}, group=group, id=f"{group}-{n}")
    for group in groups:
        client.subscriptions.wait("billing", group=group, state="parked")
        eventually_sync(lambda group=group: client.subscriptions.group("billing", group).dead == 3)
    hook.endpoint.plan = [200]


def test_the_chart_of_the_concept_has_no_arrow_that_the_table_has_not() -> None:
    (chart,) = blocks(CONCEPT, "mermaid")
    arrows = re.findall(r"^    (\w+) --> (\w+):", chart, re.MULTILINE)
    assert len(arrows) >= 9
    assert set(arrows) <= {(each.from_.value, each.to.value) for each in TRANSITIONS}


def test_the_lines_of_the_concept_work(
    station: Station,
    here: Run,  # noqa: F811
    hook: Receiver,
) -> None:
    page = Page(CONCEPT, here, station.url, hook)
    assert len(page.lines) == 2
    assert "billing delivers orders" in [page.type(line) for line in page.lines][1]


def test_the_guide_to_subscribing_works_from_the_first_line_to_the_last(
    station: Station,
    here: Run,  # noqa: F811
    hook: Receiver,
) -> None:
    names = run_python(SUBSCRIBING, station.url, hook)
    assert names["billing"].secret.startswith("whsec_")
    names["ws"].close()
    page = Page(SUBSCRIBING, here, station.url, hook)
    assert len(page.lines) == 14

    said = [page.type(line) for line in page.lines]

    eventually_sync(lambda: any(each.headers["waystation-id"] == "p5-0" for each in hook.received))
    told = {line.split()[2]: text for line, text in zip(page.lines, said, strict=True)}
    assert "200 after" in told["test"]
    assert "tracking delivers parcels" in told["show"]
    assert told["shards"].startswith("0 wait in the topic")
    assert "No group is parked" in told["groups"]
    headers = re.findall(r"^((?:waystation|webhook)-[a-z]+): ", SUBSCRIBING.read_text(), re.M)
    (request,) = [each for each in hook.received if each.headers["waystation-id"] == "p5-0"]
    assert set(headers) == {name for name in request.headers if name.startswith(("way", "webh"))}


def test_the_options_of_the_guide_are_all_that_there_are() -> None:
    text = SUBSCRIBING.read_text(encoding="utf-8")
    table = text.split("| option | default |")[1].split("\n\n")[0]
    named = {
        name.removeprefix("retry.").removeprefix(".")
        for row in table.splitlines()
        for name in re.findall(r"`([a-z_.]+)`", row.split("|")[1] if "|" in row else "")
    }
    from waystation.client.subscriptions import RetryPolicy, SubscriptionOptions

    known = {*RetryPolicy.__annotations__, *SubscriptionOptions.__annotations__} - {"retry"}
    assert named == known


def test_the_guide_to_dead_letters_works_from_the_first_line_to_the_last(
    station: Station,
    here: Run,  # noqa: F811
    hook: Receiver,
) -> None:
    page = Page(DEAD, here, station.url, hook)
    with Waystation(station.url) as ws:
        ws.topics.create("orders", partitions=4, grouped=True)
        ws.subscriptions.create("billing", topic="orders", endpoint=hook.url, retry=QUICK)
        park(ws, hook, "order-17", "order-20")
        told = {}
        for line in page.lines[:8]:
            told[line.partition("#")[0].strip()] = page.type(line)
        assert "order-17 is parked" in told["waystation subscription group billing order-17"]
        again = told["waystation subscription redrive billing --group order-17"]
        assert "3 messages, 3 settled" in again
        assert not list(ws.subscriptions.groups("billing"))

        park(ws, hook, "order-18", "order-19")
        (why, skip, purge) = page.lines[8:]
        assert page.type(why).startswith("parked")
        page.type(skip)
        ws.subscriptions.wait("billing", group="order-18", state="clean")
        assert "3 settled" in page.type(purge)

        park(ws, hook, "order-21")
        names = run_python(DEAD, station.url, hook, ws=ws)
        done = names["done"]
        assert (done.state, done.progress.settled, done.progress.parked_again) == ("done", 3, 0)


def test_every_hindrance_has_a_row_that_says_what_to_do() -> None:
    table = RUNNING.read_text(encoding="utf-8").split("| `why` says | do |")[1].split("\n\n")[0]
    told = {
        code
        for row in table.splitlines()[2:]
        for code in re.findall(r"`([a-z_]+)`", row.split("|")[1])
    }
    assert told == {*get_args(HindranceCode), "waiting_behind", "parked"}


def test_the_lines_of_running_subscriptions_work(
    station: Station,
    here: Run,  # noqa: F811
    hook: Receiver,
) -> None:
    page = Page(RUNNING, here, station.url, hook)
    assert len(page.lines) == 7
    with Waystation(station.url) as ws:
        ws.topics.create("orders", partitions=4, grouped=True)
        ws.subscriptions.create("billing", topic="orders", endpoint=hook.url)
        said = [page.type(line) for line in page.lines]
    assert "billing" in said[0]
    assert said[2].split()[0] == "shard"
