"""Workers and verbs of pools in both clients, on a real station; also as processes that die."""

from __future__ import annotations

import asyncio
import inspect
import itertools
import signal
import threading
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tests.client.pool_worker_process import WorkerProcess, worker_process
from tests.helpers.server import background_station
from tests.helpers.waiting import eventually_sync
from waystation import AsyncWaystation, Waystation
from waystation.client import GiveUpError, NewMessage, PoolMessage, TryAgainError
from waystation.client.async_pool_worker import AsyncPoolWorker
from waystation.client.async_pools import AsyncPools
from waystation.client.pool_messages import Taken
from waystation.client.pool_workload import Finished, Workload
from waystation.client.sync_pool_worker import PoolWorker
from waystation.client.sync_pools import Pools
from waystation.config import Config, PoolConfig
from waystation.errors import (
    ConflictError,
    InvalidInputError,
    KeyInvalidError,
    PoolFullError,
    PoolNotFoundError,
    WorkerUnknownError,
)
from waystation.types.message import JsonMessage

_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def url(module_store_settings: Config) -> Iterator[str]:
    """A station that looks after its pools ten times a second."""
    settings = replace(module_store_settings, pools=PoolConfig(sweep_seconds=0.1))
    with background_station(settings) as running:
        yield running.url


@dataclass
class Handled:
    """What handlers were given, and how many were at work on a key at once."""

    def __post_init__(self) -> None:
        self.by_key: defaultdict[str, list[Any]] = defaultdict(list)
        self.at_once: defaultdict[str, int] = defaultdict(int)
        self.most = 0
        self.lock = threading.Lock()

    def begin(self, message: PoolMessage) -> None:
        with self.lock:
            self.at_once[message.key] += 1
            assert self.at_once[message.key] == 1, "two of a key at once"
            self.most = max(self.most, sum(self.at_once.values()))

    def end(self, message: PoolMessage) -> None:
        with self.lock:
            self.at_once[message.key] -= 1
            self.by_key[message.key].append(message.content)

    @property
    def count(self) -> int:
        return sum(map(len, self.by_key.values()))


def new_pool(ws: Waystation, **options: Any) -> str:
    name = f"pool-{next(_numbers)}"
    ws.pools.create(name, **options)
    return name


def test_both_clients_have_the_same_verbs() -> None:
    for one, other in ((AsyncPools, Pools), (AsyncPoolWorker, PoolWorker)):
        names = [
            {name for name in vars(kind) if not name.startswith("_") and name != "aclose"}
            for kind in (one, other)
        ]
        assert names[0] == names[1] - {"close"}
        for name in names[0]:
            given = [
                list(inspect.signature(vars(kind)[name]).parameters)
                for kind in (one, other)
                if callable(vars(kind)[name])
            ]
            assert given[:1] == given[1:]


# -- Verbs -----------------------------------------------------------------------------------


def test_definitions_are_made_changed_and_deleted(url: str) -> None:
    with Waystation(url) as ws:
        name = new_pool(ws, assignment="least_loaded")
        made = ws.pools.get(name)
        assert made.options["assignment"] == "least_loaded"
        changed = ws.pools.change(name, attempts=2)
        assert (changed.version, changed.options["assignment"]) == (2, "least_loaded")
        with pytest.raises(ConflictError):
            ws.pools.change(name, version=1, attempts=3)
        assert name in [each.name for each in ws.pools.list()]
        ws.pools.delete(name)
        with pytest.raises(PoolNotFoundError):
            ws.pools.get(name)
        with pytest.raises(PoolNotFoundError):
            ws.pools.send(name, "k", 1)


def test_what_is_sent_is_shown_with_its_worker_and_explained(url: str) -> None:
    with Waystation(url) as ws:
        name = new_pool(ws, attempts=1)
        sent = ws.pools.send(name, "did:x#1", {"n": 1}, id="m-1")
        assert (sent.id, sent.outcome, sent.owner, sent.answer) == ("m-1", "added", "-", None)
        assert ws.pools.send(name, "did:x#1", {"n": 1}, id="m-1").outcome == "duplicate"
        assert ws.pools.why(name, "did:x#1").code == "no_worker"
        (key,) = ws.pools.map(name)
        assert (key.key, key.owner, key.state, key.pending) == ("did:x#1", "-", "waiting", 1)
        with pytest.raises(KeyInvalidError):
            ws.pools.send(name, "", 1)
        with pytest.raises(InvalidInputError):
            ws.pools.send_many(name, [("k", NewMessage(1, group="g"))])

        def handle(message: PoolMessage) -> None:
            raise GiveUpError("not mine")

        with ws.pools.worker(name, handle, uid="w-1"):
            eventually_sync(lambda: list(ws.pools.dead_letters(name)))
            standing = ws.pools.workers(name)
            (worker,) = standing.workers
            assert (worker.uid, worker.state, worker.keys) == ("w-1", "live", 1)
            assert ws.pools.assign(name, "other") == "w-1"
            ws.pools.forget(name, "other")
        (letter,) = ws.pools.dead_letters(name)
        assert (letter.key, letter.cause) == ("did:x#1", "GiveUpError: not mine")
        assert ws.pools.redrive(name, [letter.number]) == 1
        assert ws.pools.purge(name) == 0


@pytest.mark.slow
def test_what_finds_no_room_is_told_for_each_message(url: str) -> None:
    with Waystation(url) as ws:
        name = new_pool(ws, messages_max=150)
        sent = ws.pools.send_many(name, [(f"k-{n}", n) for n in range(300)])
        assert [each.outcome for each in sent] == ["added"] * 150 + ["full"] * 150
        with pytest.raises(PoolFullError):
            ws.pools.send(name, "k", 1)


# -- Workers ---------------------------------------------------------------------------------


def test_messages_of_a_key_are_handled_in_order_one_at_a_time(url: str) -> None:
    with Waystation(url) as ws:
        name, handled = new_pool(ws), Handled()

        def handle(message: PoolMessage) -> None:
            handled.begin(message)
            threading.Event().wait(0.001)
            handled.end(message)

        sent = [(f"k-{n % 20}", n) for n in range(400)]
        ws.pools.send_many(name, sent[:200])
        with (
            ws.pools.worker(name, handle, concurrency=8),
            ws.pools.worker(name, handle, concurrency=8),
        ):
            ws.pools.send_many(name, sent[200:])
            eventually_sync(lambda: handled.count >= 400)
        assert handled.by_key == {
            f"k-{k}": [n for n in range(400) if n % 20 == k] for k in range(20)
        }
        assert handled.most > 2, "keys are handled side by side"
        standing = ws.pools.workers(name)
        assert (standing.pending, standing.dead, standing.workers) == (0, 0, [])


async def test_the_asynchronous_worker_does_the_same(url: str) -> None:
    async with AsyncWaystation(url) as ws:
        name, handled = f"pool-{next(_numbers)}", Handled()
        await ws.pools.create(name)
        all_done = asyncio.Event()

        async def handle(message: PoolMessage) -> None:
            handled.begin(message)
            await asyncio.sleep(0.001)
            handled.end(message)
            if handled.count == 300:
                all_done.set()

        async with ws.pools.worker(name, handle, concurrency=32):
            await ws.pools.send_many(name, [(f"k-{n % 10}", n) for n in range(300)])
            async with asyncio.timeout(20):
                await all_done.wait()
        assert handled.by_key == {
            f"k-{k}": [n for n in range(300) if n % 10 == k] for k in range(10)
        }
        standing = await ws.pools.workers(name)
        assert (standing.pending, standing.workers) == (0, [])


def test_a_handler_that_fails_gets_its_message_again_before_the_next_of_its_key(url: str) -> None:
    with Waystation(url) as ws:
        name, seen = new_pool(ws, attempts=3, first_seconds=0.05), list[Any]()

        def handle(message: PoolMessage) -> None:
            seen.append((message.content, message.tries))
            if message.content == "once" and message.tries == 0:
                raise TryAgainError("later", after_seconds=0)
            if message.content == "never":
                raise ValueError("no such thing")

        ws.pools.send_many(name, [("k", "once"), ("k", "never"), ("k", "last")])
        with ws.pools.worker(name, handle):
            eventually_sync(lambda: ("last", 0) in seen)
        assert seen == [
            *(("once", 0), ("once", 1)),
            *(("never", 0), ("never", 1), ("never", 2)),
            ("last", 0),
        ]
        (letter,) = ws.pools.dead_letters(name)
        assert (letter.cause, letter.tries) == ("ValueError: no such thing", 3)


def test_what_a_handler_returns_is_the_answer_to_who_waits(url: str) -> None:
    with Waystation(url) as ws:
        name = new_pool(ws)

        def handle(message: PoolMessage) -> Any:
            assert message.wants_answer == (message.content != "nobody asks")
            return {"json": [1], "text": "ü", "bytes": b"\xff"}.get(message.content)

        # Also what needs no answer may return something.
        with ws.pools.worker(name, handle):
            for asked, answered in (("json", [1]), ("text", "ü"), ("bytes", b"\xff")):
                sent = ws.pools.send(name, asked, asked, wait="20s")
                assert sent.answer is not None
                assert sent.answer.content == answered
            assert ws.pools.send(name, "k", "silent", wait="200ms").answer is None
            ws.pools.send(name, "k", "nobody asks")


def test_a_handler_keeps_its_message_for_longer_than_a_lease(url: str) -> None:
    with Waystation(url) as ws:
        name, seen = new_pool(ws, lease_seconds=2.0, stale_seconds=2.0), list[Any]()

        def handle(message: PoolMessage) -> None:
            seen.append((message.content, message.tries))
            threading.Event().wait(4.5)
            seen.append(message.lost)

        ws.pools.send(name, "k", 1)
        with ws.pools.worker(name, handle) as worker:
            eventually_sync(lambda: len(seen) == 2)
        assert seen == [(1, 0), False]
        assert worker.lost == 0
        assert ws.pools.workers(name).pending == 0


def test_a_worker_that_an_operator_drains_ends_by_itself(url: str) -> None:
    with Waystation(url) as ws:
        name = new_pool(ws)
        with ws.pools.worker(name, lambda _: None, uid="old") as old:
            ended = threading.Thread(target=old.run)
            ended.start()
            ws.pools.assign(name, "k")
            with ws.pools.worker(name, lambda _: None, uid="new"):
                assert ws.pools.drain(name, "old") == 0
                ended.join(10)
                assert not ended.is_alive(), "it is told while it waits for messages"
                (key,) = ws.pools.map(name)
                assert (key.owner, key.reason) == ("new", "drained")


def test_a_worker_whose_pool_is_deleted_says_so(url: str) -> None:
    with Waystation(url) as ws:
        name = new_pool(ws, stale_seconds=0.3)
        with ws.pools.worker(name, lambda _: None) as worker:
            ws.pools.delete(name)
            with pytest.raises(PoolNotFoundError):
                worker.run()


def test_of_two_processes_under_one_name_the_former_ends(url: str) -> None:
    with Waystation(url) as ws:
        name = new_pool(ws, stale_seconds=2.0)
        with (
            ws.pools.worker(name, lambda _: None, uid="same") as former,
            ws.pools.worker(name, lambda _: None, uid="same") as later,
        ):
            with pytest.raises(WorkerUnknownError):
                former.run()
            ws.pools.send(name, "k", 1)
            eventually_sync(lambda: ws.pools.workers(name).pending == 0)
            assert later.lost == 0


def test_a_worker_that_was_evicted_begins_anew(url: str) -> None:
    with Waystation(url) as ws:
        name, seen = new_pool(ws, stale_seconds=2.0), list[Any]()
        with ws.pools.worker(name, lambda message: seen.append(message.content)):
            ws.pools.send(name, "k", 1)
            # What is not acknowledged yet would be handled once more.
            eventually_sync(lambda: seen == [1] and ws.pools.workers(name).pending == 0)
            (worker,) = ws.pools.workers(name).workers
            ws.pools.evict(name, worker.uid)
            ws.pools.send(name, "k", 2)
            eventually_sync(lambda: seen == [1, 2])


def test_bad_numbers_and_names_are_refused_before_anything_is_asked(url: str) -> None:
    with Waystation(url) as ws:
        for options in ({"concurrency": 0}, {"concurrency": 501}, {"uid": "Bad Name"}):
            with pytest.raises(InvalidInputError):
                ws.pools.worker("pool", lambda _: None, **options)
        with (
            pytest.raises(PoolNotFoundError),
            ws.pools.worker("no-such-pool", lambda _: None),
        ):
            pass


# -- What a worker has -----------------------------------------------------------------------


def taken(key: str, number: int = 1, *, crashes: int = 0) -> Taken:
    return Taken(
        key=key,
        epoch=1,
        number=number,
        token="t",
        tries=crashes,
        crashes=crashes,
        enqueued_ms=0,
        message=JsonMessage(id="m"),
    )


def test_what_has_crashed_a_worker_runs_alone_and_the_rest_is_given_back() -> None:
    load, plain, other, poison = (
        Workload(8),
        taken("a"),
        taken("b"),
        taken("c", crashes=1),
    )
    load.add([plain])
    begun = load.next()
    assert begun is plain
    load.begin(plain, None)  # type: ignore[arg-type]
    load.add([other, poison, taken("d")])
    assert load.next() is None, "what is begun comes to its end first"
    assert load.room == 0
    load.finish(Finished(plain, "done"))
    told = [(each.taken.key, each.verdict) for each in load.settle(100)]
    assert told == [("b", "release"), ("d", "release"), ("a", "done")]
    assert load.next() is None, "and the pool knows of it"
    load.settled()
    assert load.next() is poison
    load.begin(poison, None)  # type: ignore[arg-type]
    assert load.next() is None
    load.finish(Finished(poison, "again"))
    assert load.room > 0


def test_a_key_that_was_lost_and_came_back_is_not_begun_twice_at_once() -> None:
    load, first, again = Workload(8), taken("a"), taken("a")
    load.add([first])
    load.begin(first, PoolMessage(**_FIELDS))
    load.lose()
    load.add([again, taken("b")])
    following = load.next()
    assert following is not None
    assert following.key == "b"
    load.finish(Finished(first, "done"))
    assert load.next() is again


_FIELDS: dict[str, Any] = {
    "key": "a",
    "id": "m",
    "tries": 0,
    "crashes": 0,
    "enqueued_ms": 0,
    "content_type": "",
    "headers": [],
    "wants_answer": False,
    "stored": b"",
}


# -- Processes -------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_worker_that_is_told_to_stop_drains(url: str, kind: str) -> None:
    """F-34: what was begun ends, what was not goes on elsewhere, in order, nothing twice."""
    with Waystation(url) as ws:
        name = new_pool(ws)
        with worker_process(url, name, kind=kind) as old:
            for key in ("k", "l"):
                ws.pools.assign(name, key)
            with worker_process(url, name, kind=kind) as new:
                sent = [("k", "slow"), ("k", "next"), ("l", "slow"), ("k", "last")]
                ws.pools.send_many(name, sent)
                old.wait_for("begun", 2)
                assert old.end() == 0
                assert sorted(old.heard("done")) == ["k slow", "l slow"]
                assert old.heard("left") == ["0"]
                assert new.wait_for("done", 2) == ["k next", "k last"]
                assert new.end() == 0
        standing = ws.pools.workers(name)
        assert (standing.pending, standing.dead, standing.workers) == (0, 0, [])


@pytest.mark.slow
def test_a_message_that_kills_its_workers_takes_nothing_else_along(url: str) -> None:
    """F-18: poison is a dead letter after its attempts; what ran beside it is handled."""
    options = {"attempts": 3, "stale_seconds": 1.0, "lease_seconds": 1.0}
    with Waystation(url) as ws:
        name = new_pool(ws, **options)
        others = [(f"k-{n}", "fine") for n in range(30)]
        ws.pools.send_many(name, [*others, ("p", "die"), ("p", "after"), *others])
        seen: list[str] = []
        for _ in range(12):
            with worker_process(url, name) as worker:
                eventually_sync(
                    lambda w=worker: (
                        w.process.poll() is not None or ws.pools.workers(name).pending == 0
                    ),
                    timeout=30,
                )
                worker.end()
                seen += worker.heard("done")
            if ws.pools.workers(name).pending == 0:
                break
        assert sorted(set(seen)) == sorted({f"{k} fine" for k, _ in others} | {"p after"})
        (letter,) = ws.pools.dead_letters(name)
        assert (letter.key, letter.tries, letter.crashes) == ("p", 3, 3)


@pytest.mark.slow
def test_a_worker_that_stood_still_loses_its_keys_and_begins_anew(url: str, tmp_path: Path) -> None:
    """F-13: stopped for more than a lease, then continued: its work is another's, told as lost."""
    with Waystation(url) as ws:
        name = new_pool(ws, stale_seconds=2.0, lease_seconds=2.0)
        with worker_process(url, name, "still") as still:
            ws.pools.send(name, "k", f"held {tmp_path}")
            still.wait_for("begun")
            still.process.send_signal(signal.SIGSTOP)
            with worker_process(url, name, "other") as other:
                # While the other works on it, the first one comes back, ends, and acknowledges.
                other.wait_for("begun")
                still.process.send_signal(signal.SIGCONT)
                (tmp_path / "still").touch()
                still.wait_for("done", 1)
                assert not other.heard("done")
                (tmp_path / "other").touch()
                other.wait_for("done", 1)
                eventually_sync(lambda: _state(ws, name, "still") == "live")
                assert still.end() == 0
                # It did the message twice if its lease ran out before the pool evicted it: the
                # message then came to it once more while it was stopped.
                lost = still.heard("left")
                assert lost == [str(len(still.heard("done")))], "what it did was done again"
                assert other.end() == 0
        standing = ws.pools.workers(name)
        assert (standing.pending, standing.dead) == (0, 0)


def _state(ws: Waystation, pool: str, uid: str) -> str:
    found = {each.uid: each.state for each in ws.pools.workers(pool).workers}
    return found.get(uid, "")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sync", "async"])
def test_no_message_is_lost_with_a_worker_that_is_killed(url: str, kind: str) -> None:
    """F-30: kill -9 of one of two; every key goes on in order, with what was not settled."""
    with Waystation(url) as ws:
        name = new_pool(ws, stale_seconds=3.0, lease_seconds=3.0)
        sent = [(f"k-{n % 20}", f"{n:03d}") for n in range(400)]
        with (
            worker_process(url, name, kind=kind) as doomed,
            worker_process(url, name, kind=kind) as other,
        ):
            ws.pools.send_many(name, sent[:200])
            doomed.wait_for("done", 20)
            doomed.end(signal.SIGKILL)
            ws.pools.send_many(name, sent[200:])
            eventually_sync(lambda: ws.pools.workers(name).pending == 0, timeout=60)
            assert other.end() == 0
        _check_order(sent, doomed, other)
        assert ws.pools.workers(name).dead == 0


def _check_order(sent: list[tuple[str, str]], doomed: WorkerProcess, other: WorkerProcess) -> None:
    """Per key: what the doomed one began, then the rest; one message of it may be there again."""
    begun, rest = ([line.split(" ") for line in each.heard("begun")] for each in (doomed, other))
    for key in {key for key, _ in sent}:
        wanted = [data for to, data in sent if to == key]
        before = [data for to, data in begun if to == key]
        after = [data for to, data in rest if to == key]
        assert before == wanted[: len(before)]
        assert after[: 1 + len(wanted) - len(before)] in (
            wanted[len(before) :],
            wanted[len(before) - 1 :],
        ), (key, before, after)
