"""`bench sender`: its bars, its contenders on real servers, and receivers that hang."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from waystation_bench import receivers
from waystation_bench.benchmark import BenchmarkError
from waystation_bench.children import Child
from waystation_bench.lane_load import LANES
from waystation_bench.sender import SENDER, Stage

BARS = {
    "sender_vs_bare_client": 0.6,
    "others_p99_with_one_hanging": 1.2,
    "webhook_overhead_on_publish": 1.1,
}


def test_the_bars_of_the_sender_are_the_promised_ones() -> None:
    assert {promise.name: promise.bar for promise in SENDER.promises} == BARS


@pytest.mark.slow
def test_every_contender_measures_real_servers(tmp_path: Path) -> None:
    # Given a store, receivers, a driver and then a server, each a process of its own
    with Stage(tmp_path / "stage") as stage:
        contenders = [*stage.sends(0.5), *stage.lanes(0.3)]
        samples = {contender.name: contender.sample() for contender in contenders}
        with stage.serving() as server:
            for contender in stage.publishes(server, 0.5):
                samples[contender.name] = contender.sample()

    # Then each has done something, and it took CPU time
    for name, sample in samples.items():
        assert sample.operations > 0, name
        assert sample.cpu_seconds > 0, name
    # And every delivery to an endpoint that answers has come, whatever the hanging one does
    for name in ("lanes.all_answer", "lanes.one_hangs"):
        assert samples[name].operations == 0.3 * 400 * (LANES - 1) // LANES
        assert 0 < samples[name].figures["p50_ms"] <= samples[name].figures["p99_ms"]


@pytest.mark.parametrize("job", ["send_ours", "send_bare"])
def test_deliveries_that_fail_end_the_run_in_words(tmp_path: Path, job: str) -> None:
    with Stage(tmp_path / "stage") as stage:
        nobody = msgspec.structs.replace(stage.receiver, port=_closed_port())

        with pytest.raises(BenchmarkError, match=r"answered 0|delivery failed"):
            stage.drive(job, nobody, 0.1)


def test_a_hanging_receiver_takes_requests_and_never_answers_while_the_others_do() -> None:
    request = f"POST / HTTP/1.1\r\ncontent-length: {len(receivers.stamp())}\r\n\r\n".encode()
    with Child(receivers.__name__, "2") as child:
        answering, hanging = child.ask({"hanging": 1})["ports"]
        answered = _ask(answering, request + receivers.stamp(), 30)
        hung = _ask(hanging, request + receivers.stamp(), 0.3)

        assert answered.startswith(b"HTTP/1.1 200 OK\r\n")
        assert hung == b""
        (delay,) = child.ask({"delays_of": 2})["delays_ms"]
        assert 0 < delay < 1000


@pytest.mark.slow
def test_a_quick_run_of_the_sender_measures_every_bar_within_its_time() -> None:
    """Whether the bars hold is the benchmark's own verdict, on a quiet machine; not a test's."""
    begun = time.monotonic()
    command = [str(Path(sys.executable).parent / "waystation"), "bench", "sender"]
    found = subprocess.run(
        [*command, "--quick", "--json"], capture_output=True, text=True, check=False
    )
    took = time.monotonic() - begun

    report = json.loads(found.stdout)
    assert took < 45
    assert found.stdout.count("\n") == 1
    assert {bar["name"]: bar["bar"] for bar in report["bars"]} == BARS
    assert all("round" in note for note in report["notes"])
    assert all(bar["value"] is not None for bar in report["bars"])
    rows = {row["name"]: row for row in report["rows"]}
    for name in ("send.ours@memory", "send.aiohttp@memory", "send.deliverer@memory"):
        assert rows[name]["figures"]["vs_bare_client"] > 0
    assert found.returncode == (0 if all(bar["holds"] for bar in report["bars"]) else 1)


def _ask(port: int, request: bytes, seconds: float) -> bytes:
    """What comes back within that time; nothing from one who hangs."""
    with socket.create_connection(("127.0.0.1", port)) as wire:
        wire.sendall(request)
        wire.settimeout(seconds)
        try:
            return wire.recv(4096)
        except TimeoutError:
            return b""


def _closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])
