"""`bench delivery`: its bars, its contenders on real servers, and requests that are the same."""

from __future__ import annotations

import contextlib
import json
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from waystation_bench.benchmark import BenchmarkError
from waystation_bench.delivery import DELIVERY, Endpoints
from waystation_bench.delivery_load import FATAL, RETRIED
from waystation_bench.delivery_node import LANES, MESSAGES_PER_SECOND

BARS = {
    "grouped_vs_bare_client": 0.5,
    "grouped_1000_groups_5pc_failures_vs_bare": 0.3,
    "first_20_of_200_groups_failing_500_vs_loop": 2.0,
    "first_20_of_200_groups_failing_502_vs_loop": 2.0,
    "first_20_of_200_groups_failing_429_vs_loop": 2.0,
    "tenth_of_1000_groups_failing_500_vs_loop": 2.0,
    "tenth_of_1000_groups_failing_502_vs_loop": 2.0,
    "pipeline_endpoint_vs_start_batch": 0.5,
    "others_p99_with_one_hanging": 1.2,
    "store_bytes_per_retrying_group": 300,
    "store_bytes_per_parked_group": 200,
    "store_bytes_per_clean_group": 0,
}
QUICK_SECONDS_MAX = 150


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoints]:
    """A store, receivers and a driver, each a process of its own."""
    with Endpoints(tmp_path_factory.mktemp("stage")) as stage:
        yield stage


def test_the_bars_of_delivery_are_the_promised_ones() -> None:
    assert {promise.name: promise.bar for promise in DELIVERY.promises} == BARS


@pytest.mark.slow
def test_every_contender_delivers_on_real_servers(stage: Endpoints) -> None:
    fails = {"every": 20, "status": 500}
    contenders = [
        stage.contender("deliver.bare", "deliver_bare", 0.1),
        stage.contender("deliver.grouped", "deliver_grouped", [5_000, 0.1]),
        stage.contender("failing.grouped", "deliver_failing", [50, 20], fails),
        stage.contender("pipeline.start_batch", "start_ours", 0.1),
        stage.contender("pipeline.ours", "deliver_pipeline", [10_000, 0.1]),
    ]

    samples = {each.name: each.sample() for each in contenders}

    for name, sample in samples.items():
        assert sample.operations > 0, name
        assert sample.cpu_seconds > 0, name
    # All of them, whatever has failed.
    assert samples["failing.grouped"].operations == 50 * 20


@pytest.mark.slow
def test_bench_delivery_groups_that_fail_first_attempts_are_delivered_as_fast_as_by_a_loop(
    stage: Endpoints,
) -> None:
    """The bars allow a factor of 2; a busy machine gets 10. An open breaker costs more than 50."""
    # The first answers 500; 502 and 429 are signs of an overload, which could cost slots.
    loop, *ours = (each.sample() for each in stage.uneven("first_groups", 200, 20, 20))

    assert [each.operations for each in ours] == [loop.operations] * 3 == [200 * 20] * 3
    assert all(each.seconds < 10 * loop.seconds for each in ours)


@pytest.mark.slow
def test_every_message_to_an_endpoint_that_answers_comes_whatever_the_hanging_one_does(
    stage: Endpoints,
) -> None:
    for hanging in (0, 1):
        sample = stage.many(0.5, hanging).sample()

        assert sample.operations == 0.5 * MESSAGES_PER_SECOND * (LANES - 1) // LANES
        assert 0 < sample.figures["p50_ms"] <= sample.figures["p99_ms"]


def test_only_groups_that_are_not_clean_weigh_something(stage: Endpoints) -> None:
    clean, retrying, parked = (each.sample().figures for each in stage.weighs(1_000))

    assert clean["group_bytes"] == 0
    assert 0 < retrying["group_bytes"] <= 300
    assert 0 < parked["group_bytes"] <= 200
    assert RETRIED != FATAL


def test_the_bare_client_and_a_subscription_send_the_same_request(stage: Endpoints) -> None:
    sent = []
    for job, amount in (("deliver_bare", 0.1), ("deliver_grouped", [1_000, 0.1])):
        with _Listener() as listener:
            target = msgspec.structs.replace(stage.receiver, port=listener.port)
            # A topic that runs dry is no measurement, and none is wanted here.
            with contextlib.suppress(BenchmarkError):
                stage.drive(job, target, amount)
            sent.append(_shape(listener.first))

    assert sent[0] == sent[1]
    names = {line.partition(":")[0] for line in sent[0]}
    assert names >= {"webhook-id", "webhook-signature", "waystation-position"}


@pytest.mark.slow
def test_a_quick_run_of_delivery_measures_every_bar_within_its_time() -> None:
    """Whether the bars hold is the benchmark's own verdict, on a quiet machine; not a test's."""
    begun = time.monotonic()
    command = [str(Path(sys.executable).parent / "waystation"), "bench", "delivery"]
    found = subprocess.run(
        [*command, "--quick", "--json"], capture_output=True, text=True, check=False
    )
    took = time.monotonic() - begun

    report = json.loads(found.stdout)
    assert took < QUICK_SECONDS_MAX
    assert {bar["name"]: bar["bar"] for bar in report["bars"]} == BARS
    assert all("round" in note for note in report["notes"])
    assert all(bar["value"] is not None for bar in report["bars"])
    assert found.returncode == (0 if all(bar["holds"] for bar in report["bars"]) else 1)


class _Listener:
    """Keeps the first request, and answers all."""

    def __enter__(self) -> _Listener:
        self.first = b""
        self._socket = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.port = int(self._socket.getsockname()[1])
        threading.Thread(target=self._listen, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def _listen(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                wire, _ = self._socket.accept()
                threading.Thread(target=self._answer, args=(wire,), daemon=True).start()

    def _answer(self, wire: socket.socket) -> None:
        with wire, contextlib.suppress(OSError):
            while got := wire.recv(65536):
                self.first = self.first or got
                wire.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")


def _shape(request: bytes) -> list[str]:
    """A request without what differs from message to message, and from round to round."""
    text = request.decode()
    text = re.sub(r"(host: 127\.0\.0\.1):\d+", r"\1", text, flags=re.IGNORECASE)
    text = re.sub(r"(webhook-timestamp|webhook-signature): .*", r"\1:", text)
    text = re.sub(r"waystation-position: .*", "waystation-position:", text)
    text = re.sub(r"(webhook-id: bench:1):\d+-\d+-\d+", r"\1", text)
    # Numbers of messages have one digit or more.
    text = re.sub(r"(content-length): \d+", r"\1:", text, flags=re.IGNORECASE)
    return re.sub(r"\bm-\d+|order-\d+|\"number\":\d+", "", text).splitlines()
