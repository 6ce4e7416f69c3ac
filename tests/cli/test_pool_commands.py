"""`waystation pool` as a user runs it: make, send, see the map, find out why, drain, redrive."""

from __future__ import annotations

import io
import json
import signal
import subprocess
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tests.cli.conftest import Run, clean_environment, command
from tests.cli.test_topic_commands import client, here  # noqa: F401 (fixtures)
from tests.helpers.waiting import eventually_sync
from waystation import Waystation
from waystation.client import PoolMessage
from waystation.client.pools import PoolOptions as ClientOptions
from waystation.pools import PoolOptions
from waystation.testing import Station


class Office:
    """A station with pool `agents`, and workers of it."""

    def __init__(
        self,
        client: Waystation,  # noqa: F811
        here: Run,  # noqa: F811
        url: str,
        typing: pytest.MonkeyPatch,
    ) -> None:
        self.client, self.url, self._here, self._typing = client, url, here, typing
        self.held = threading.Event()
        client.pools.create("agents", attempts=1)
        self.workers: dict[str, Any] = {}

    def __call__(self, *words: str, code: int = 0, text: str = "") -> str:
        """What a command prints; on standard error if it fails."""
        self._typing.setattr("sys.stdin", io.StringIO(text))
        done = self._here("pool", *words, "--url", self.url)
        assert done.returncode == code, done
        return str(done.stdout if code in (0, 1, 3, 5) and done.stdout else done.stderr)

    def json(self, *words: str, code: int = 0) -> Any:
        return json.loads(self(*words, "--json", code=code))

    def work(self, uid: str) -> None:
        """A worker that answers, holds what it is told to, and refuses the bad."""

        def handle(message: PoolMessage) -> Any:
            if message.content == "bad":
                raise ValueError("no good")
            if message.content == "hold":
                self.held.wait(30)
            return {"from": uid}

        self.workers[uid] = self.client.pools.worker("agents", handle, uid=uid)
        self.workers[uid].__enter__()

    def close(self) -> None:
        self.held.set()
        for worker in self.workers.values():
            worker.close()


@pytest.fixture
def office(
    client: Waystation,  # noqa: F811
    here: Run,  # noqa: F811
    station: Station,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Office]:
    opened = Office(client, here, station.url, monkeypatch)
    yield opened
    opened.close()


def test_the_client_knows_every_option_of_a_pool() -> None:
    assert list(ClientOptions.__annotations__) == list(PoolOptions.__struct_fields__)


def test_a_pool_is_made_changed_shown_and_deleted(office: Office) -> None:
    made = office.json("create", "other", "-o", "assignment=consistent_hash")
    assert made["options"]["assignment"] == "consistent_hash"
    assert "version 2" in office("change", "other", "-o", "assignment=least_loaded")
    assert office.client.pools.get("other").options["assignment"] == "least_loaded"
    assert [each["name"] for each in office.json("list")["pools"]] == ["agents", "other"]
    listed = office("list")
    assert listed.splitlines()[0].split() == ["pool", "assignment", "version", "created"]
    shown = office("show", "other")
    assert 'assignment = "least_loaded"' in shown
    assert "No workers" in shown
    assert "already" in office("create", "other", code=6)
    assert "There is no option" in office("create", "x", "-o", "color=red", code=2)
    assert "Nothing to change" in office("change", "other", code=2)
    assert office("delete", "other", text="n\n", code=1)
    office("delete", "other", "--yes")
    assert "pool list" in office("show", "other", code=3)


def test_a_message_goes_to_a_worker_and_its_answer_comes_back(office: Office) -> None:
    assert "waits for a worker" in office("send", "agents", "did:x#1", '{"n": 1}')
    office.work("w-1")
    sent = office.json("send", "agents", "did:x#1", "{}", "--id", "m-1", "--wait", "20s")
    assert (sent["id"], sent["owner"]) == ("m-1", "w-1")
    assert sent["answer"]["data"] == {"from": "w-1"}
    told = office("send", "agents", "did:x#1", "{}", "--id", "m-1", "--wait", "20s")
    assert "it was there before" in told
    assert '{"from":"w-1"}' in told
    assert office("send", "agents", "k", "-", "--text", text="words")
    assert "not JSON" in office("send", "agents", "k", "{", code=2)
    assert "printable" in office("send", "agents", "", "1", code=2)
    # An answer that does not come in time is told by the exit code; the message is there.
    assert office.json("send", "agents", "k", '"hold"', "--wait", "100ms", code=5)["id"]


def test_the_map_shows_keys_and_the_load_of_each_worker(office: Office) -> None:
    for uid in ("w-1", "w-2"):
        office.work(uid)
    for n in range(4):
        office.client.pools.send("agents", f"k-{n}", "hold")
        office.client.pools.send("agents", f"k-{n}", "next")
    eventually_sync(
        lambda: sum(each.taken for each in office.client.pools.workers("agents").workers) == 4
    )
    told = office("map", "agents")
    lines = [line.split() for line in told.splitlines()]
    assert told.startswith("4 keys, 8 pending")
    assert lines[1] == [*("worker", "state", "kind", "keys", "pending", "taken"), "last", "access"]
    assert [line[:6] for line in lines[2:4]] == [
        ["w-1", "live", "native", "2", "4", "2"],
        ["w-2", "live", "native", "2", "4", "2"],
    ]
    assert [line[0] for line in lines if line and line[0].startswith("k-")] == [
        *("k-0", "k-1", "k-2", "k-3")
    ]
    found = office.json("map", "agents", "--worker", "w-1")
    assert {each["owner"] for each in found["keys"]} == {"w-1"}
    assert len(found["standing"]["workers"]) == 2
    assert len(office.json("map", "agents", "--max", "1")["keys"]) == 1
    assert [each["uid"] for each in office.json("workers", "agents")["workers"]] == ["w-1", "w-2"]
    assert "w-2" in office("workers", "agents")
    looks = office("watch", "agents", "--count", "2", "--every", "0.1", "--json").splitlines()
    assert [json.loads(each)["pending"] for each in looks] == [8, 8]


def test_why_tells_of_a_key(office: Office) -> None:
    assert office.json("why", "agents", "k", code=3)["code"] == "unknown"
    office.client.pools.send("agents", "k", "hold")
    assert office("why", "agents", "k").startswith("no_worker  1 message waits")
    office.work("w-1")
    eventually_sync(lambda: office.client.pools.why("agents", "k").code == "taken")
    assert "Worker w-1 works on the first of 1 (try 1 of 1)" in office("why", "agents", "k")


def test_an_operator_moves_drains_and_evicts(office: Office) -> None:
    office.work("w-1")
    assert "w-1 has it" in office("assign", "agents", "k")
    office.work("w-2")
    assert office.json("assign", "agents", "k", "--worker", "w-2")["owner"] == "w-2"
    assert "no such worker" in office("assign", "agents", "k", "--worker", "nobody", code=3)
    assert "1 keys of w-2 went to others" in office("evict", "agents", "w-2")
    eventually_sync(
        lambda: {each.state for each in office.client.pools.workers("agents").workers} == {"live"}
    )
    assert office.client.pools.why("agents", "k").facts["owner"] == "w-1"
    office.client.pools.send("agents", "k", "hold")
    eventually_sync(lambda: office.client.pools.why("agents", "k").code == "taken")
    assert "taken" in office("assign", "agents", "k", "--worker", "w-2", code=6)
    assert "has messages" in office("forget", "agents", "k", code=6)
    assert office.json("drain", "agents", "w-1")["taken"] == 1
    assert office("why", "agents", "k").startswith("draining")
    office.held.set()
    eventually_sync(lambda: office.client.pools.why("agents", "k").code == "idle")
    assert "is forgotten" in office("forget", "agents", "k")
    assert "pool workers" in office("drain", "agents", "nobody", code=3)


def test_dead_letters_are_listed_sent_again_and_deleted(office: Office) -> None:
    assert "No dead letters" in office("dead", "agents")
    office.work("w-1")
    for n in range(2):
        office.client.pools.send("agents", f"k-{n}", "bad", id=f"m-{n}")
    eventually_sync(lambda: len(list(office.client.pools.dead_letters("agents"))) == 2)
    told = office("dead", "agents")
    assert "ValueError: no good" in told
    assert "m-0" in told
    (first, _) = office.json("dead", "agents")["dead_letters"]
    assert "Which dead letters" in office("redrive", "agents", code=2)
    assert "1 are sent again" in office("redrive", "agents", str(first["number"]))
    eventually_sync(lambda: len(list(office.client.pools.dead_letters("agents"))) == 2)
    assert office("purge", "agents", "--all", text="n\n", code=1)
    assert office.json("purge", "agents", "--all", "--yes")["count"] == 2
    assert "No dead letters" in office("dead", "agents")


def test_watching_ends_with_ctrl_c(office: Office) -> None:
    process = subprocess.Popen(
        command("pool", "watch", "agents", "--json", "--every", "0.1", "--url", office.url),
        env=clean_environment(),
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert json.loads(process.stdout.readline())["pending"] == 0
    process.send_signal(signal.SIGINT)
    process.stdout.read()
    process.stdout.close()
    assert process.wait(20) == 130
