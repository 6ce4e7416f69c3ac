"""`bench transactions`: its bars, its contenders on real servers, and peers that are not there."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from waystation_bench import rival
from waystation_bench.benchmark import Benchmark, BenchmarkError
from waystation_bench.channels import Level
from waystation_bench.peers import NodePeer, Peer, PeerMissingError, ensure_peer
from waystation_bench.report import Row
from waystation_bench.runner import run_benchmark
from waystation_bench.transaction_peers import PYTHON_PEERS, Rival
from waystation_bench.transactions import TRANSACTIONS
from waystation_bench.workshop import Workshop

BARS = {
    "drain_vs_best_python_peer": 4,
    "drain_disk_vs_best_python_peer": 5,
    "start_batch_vs_raw": 0.5,
    "start_http_vs_bare": 0.5,
    "p99_ms_vs_best_peer": 3,
    "idle_cpu_percent": 2,
    "store_bytes_per_sleeper": 2000,
    "cost_1m_vs_1k": 1.3,
}
QUICK_PEERS = [peer.name for peer in PYTHON_PEERS if peer.quick]


def row(name: str, rate: float, **figures: float) -> Row:
    return Row(
        name=name,
        level="memory",
        process="server",
        rate=rate,
        cpu_us=1.0,
        store_cpu_us=1.0,
        rounds=3,
        figures=figures,
    )


# -- The bars --------------------------------------------------------------------------------


def test_the_bars_of_transactions_are_the_promised_ones() -> None:
    assert {promise.name: promise.bar for promise in TRANSACTIONS.promises} == BARS


def test_a_quick_run_has_the_three_fastest_peers_and_a_full_one_six() -> None:
    assert sorted(QUICK_PEERS) == ["dramatiq", "huey", "taskiq"]
    names = sorted(peer.name for peer in PYTHON_PEERS)
    assert names == ["arq", "celery", "dramatiq", "huey", "saq", "taskiq"]
    assert sorted(rival.RIVALS) == names


def test_we_are_compared_with_the_best_of_all_peers_that_were_measured() -> None:
    # Given three peers of a quick run, and a faster one of a full run
    drains, _, _, _, delays, *_ = TRANSACTIONS.promises
    rows = [row(f"drain.{peer}@memory", 1000) for peer in QUICK_PEERS]
    rows += [row("drain.ours@memory", 10_000), row("drain.celery@memory", 2000)]
    assert drains.judge(rows)[0].value == 5

    # And delays, of which the least is the best
    rows = [row(f"pace.{peer}@memory", 200, p99_ms=4.0) for peer in QUICK_PEERS]
    rows += [row("pace.ours@memory", 200, p99_ms=5.0), row("pace.arq@memory", 200, p99_ms=2.0)]
    assert delays.judge(rows)[0].value == 2.5


def test_a_peer_of_the_three_that_is_missing_makes_its_bars_fail_by_name() -> None:
    drains = TRANSACTIONS.promises[0]
    rows = [row("drain.ours@memory", 10_000), row("drain.huey@memory", 1000)]

    bar, note = drains.judge(rows)

    assert (bar.value, bar.holds) == (None, False)
    assert note.endswith("there is no row drain.dramatiq@memory.")


# -- Our own side, on real servers -----------------------------------------------------------


@pytest.mark.slow
def test_every_contender_of_ours_measures_a_real_station(tmp_path: Path) -> None:
    # Given a store, a driver, and a station whenever one is needed, each a process of its own
    with Workshop(tmp_path / "shop", "memory", {}) as shop:
        contenders = [shop.drains(1, 1200), shop.drains(3, 300)]
        samples = {each.name: each.sample() for each in contenders}
        shop.empty()
        with shop.working() as station:
            for each in (
                shop.idles(station, 0.2),
                shop.paces(station, 0.2),
                shop.weighs(station, 500),
            ):
                samples[each.name] = each.sample()
        for name in ("start_ours", "start_raw"):
            samples[name] = shop.drive(name, 0.1)
        for name in ("depth_queued", "depth_asleep"):
            samples[name] = shop.drive(name, [1000, 1])

    # Then each has done something, and it took CPU time of the store
    for name, sample in samples.items():
        assert sample.operations > 0, name
        assert sample.store_cpu_seconds > 0, name
    # And what was started is what was worked off, but for the moment before the first look: in its
    # first turn a worker claims from all cells, 300 together
    assert 700 < samples["drain.ours"].operations <= 1200
    assert 0 < samples["idle.ours"].figures["cpu_percent"] < 100
    assert samples["pace.ours"].operations == 40
    assert 0 < samples["pace.ours"].figures["p50_ms"] <= samples["pace.ours"].figures["p99_ms"]
    # And one that sleeps takes at least its own data
    assert 300 < samples["weigh.ours"].figures["sleeper_bytes"] < 20_000
    assert samples["depth_asleep"].figures["many_vs_few"] > 0


@pytest.mark.slow
def test_a_drain_at_level_disk_ends_with_every_write_on_disk(tmp_path: Path) -> None:
    with Workshop(tmp_path / "shop", "disk", {}) as shop:
        # When a queue is filled, the disk is not waited for
        shop.drive("relax", 0)
        assert _fsync(shop) == b"everysec"

        # But it is while a station works
        assert shop.drains(1, 200).sample().operations > 0
        assert _fsync(shop) == b"always"


@pytest.mark.slow
def test_a_drain_that_did_not_end_as_counted_ends_the_run_in_words(tmp_path: Path) -> None:
    with Workshop(tmp_path / "shop", "memory", {}) as shop:
        shop.drive("fill_1", 200)
        with (
            shop.working() as station,
            pytest.raises(BenchmarkError, match=r"Of 150, (1[5-9]\d|200) have ended well"),
        ):
            shop.drive("drain", 150, station.process_id)


@pytest.mark.slow
def test_starts_over_http_are_measured_on_both_servers(tmp_path: Path) -> None:
    with Level(tmp_path / "memory", "memory") as level:
        for server in ("ours", "bare"):
            sample = level.contender(f"start.{server}", "start_http", server, 0.3).sample()
            assert sample.operations > 0
            assert sample.cpu_seconds > 0


# -- The peers' side -------------------------------------------------------------------------


def test_a_rival_tells_its_first_call_and_its_last_with_all_delays() -> None:
    code = (
        "import sys, time; sys.path.insert(0, sys.argv[1])\n"
        "from rival import Calls\n"
        "note = Calls(3).note\n"
        "for _ in range(3): note(time.monotonic() - 0.5)\n"
        "raise SystemExit(1)  # Never: the last call ends the process.\n"
    )
    folder = str(Path(rival.__file__).parent)
    said = subprocess.run(
        [sys.executable, "-I", "-c", code, folder], capture_output=True, text=True, check=False
    )
    assert said.returncode == 0
    first, last = (json.loads(line) for line in said.stdout.splitlines())
    assert first["at"] <= last["at"]
    assert first["cpu_seconds"] <= last["cpu_seconds"]
    assert len(last["delays_ms"]) == 3
    assert all(500 <= each < 5000 for each in last["delays_ms"])


def test_a_peer_that_breaks_ends_the_run_with_its_own_words() -> None:
    # Given an interpreter that does not have the peer
    ghost = Rival("huey", Path(sys.executable), "/nowhere.sock", 1)

    with pytest.raises(BenchmarkError, match="The peer huey could not fill") as caught:
        ghost.fill(1)

    assert "No module named 'huey'" in str(caught.value)


@pytest.mark.slow
def test_a_peer_of_full_runs_alone_is_not_asked_for_in_a_quick_one(tmp_path: Path) -> None:
    missing = Peer("ghost", ("/nowhere/ghost-1.0-py3-none-any.whl",), quick=False)
    benchmark = Benchmark(
        name="haunted", asks="?", peers=(missing,), measure=lambda run, folder: None, promises=()
    )

    def notes(*, quick: bool) -> list[str]:
        return run_benchmark(
            benchmark, quick=quick, progress=lambda *_: None, peers_folder=tmp_path
        ).notes

    assert notes(quick=True) == []
    assert notes(quick=False)[0].startswith("The peer ghost cannot be installed:")


def test_a_peer_on_node_is_missing_by_name_where_there_is_no_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(PeerMissingError, match=r"The peer bull needs Node\.js and npm"):
        ensure_peer(NodePeer("bull", ("bull@1.0.0",)), tmp_path / "peers")
    assert not (tmp_path / "peers" / "bull" / ".installed").exists()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_quick_run_of_transactions_measures_every_bar_within_its_time() -> None:
    """Whether the bars hold is the benchmark's own verdict, on a quiet machine; not a test's."""
    command = [str(Path(sys.executable).parent / "waystation"), "bench", "transactions"]
    begun = time.monotonic()
    found = subprocess.run(
        [*command, "--quick", "--json"], capture_output=True, text=True, check=False
    )
    took = time.monotonic() - begun

    report = json.loads(found.stdout)
    # Peers are installed before its clock runs.
    assert report["seconds"] < 240
    assert report["seconds"] < took
    assert found.stdout.count("\n") == 1
    assert {each["level"] for each in report["rows"]} == {"memory", "disk"}
    assert {bar["name"]: bar["bar"] for bar in report["bars"]} == BARS
    assert all(bar["value"] is not None for bar in report["bars"])
    rows = {each["name"]: each for each in report["rows"]}
    assert rows["drain.ours@memory"]["figures"]["vs_ours_3_steps"] > 0
    assert found.returncode == (0 if all(bar["holds"] for bar in report["bars"]) else 1)


def _fsync(shop: Workshop) -> bytes:
    """What the store's settings say right now."""
    import redis

    with redis.Redis(unix_socket_path=shop.store.address.path) as client:
        return client.config_get("appendfsync")["appendfsync"].encode()  # type: ignore[union-attr,index,no-any-return]
