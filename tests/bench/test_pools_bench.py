"""`bench pools`: its bars, and its contenders on real servers."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from waystation.acapy.recipients import recipient_key
from waystation_bench.pool_load import envelope, recipient
from waystation_bench.pools import POOLS, Doors

BARS = {"relay_vs_bare": 0.6, "cost_100k_vs_10_keys": 1.3, "reassign_10k_keys_s": 1}


@pytest.fixture(scope="module")
def doors(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Doors]:
    """A store, a relay, a bare handler and a driver, each a process of its own."""
    with Doors(tmp_path_factory.mktemp("doors")) as doors:
        yield doors


def test_the_bars_of_pools_are_the_promised_ones() -> None:
    assert {promise.name: promise.bar for promise in POOLS.promises} == BARS


def test_an_envelope_of_the_load_is_one_for_its_recipient() -> None:
    assert recipient_key(envelope(17)).key == recipient(17)
    assert 800 < len(envelope(17)) < 1100


@pytest.mark.parametrize(("job", "server"), [("relay_ours", "relay"), ("relay_bare", "bare")])
def test_envelopes_come_in_at_both_doors_round_after_round(
    doors: Doors, job: str, server: str
) -> None:
    for _ in range(2):
        sample = doors.drive(job, server, 0.2)
        assert sample.operations > 0
        assert sample.cpu_seconds > 0


def test_messages_beside_many_keys_and_few_are_told_as_a_ratio(doors: Doors) -> None:
    sample = doors.drive("pool_depth", None, [500, 2])
    assert sample.operations == 3 * 2 * 20 * 5
    assert sample.figures.keys() == {"few_us", "many_us", "many_vs_few"}
    assert 0.1 < sample.figures["many_vs_few"] < 10


def test_all_keys_of_a_worker_move(doors: Doors) -> None:
    sample = doors.drive("pool_reassign", None, 350)
    assert sample.operations == 350
    assert 0 < sample.figures["all_s"] < 10


@pytest.mark.slow
def test_a_quick_run_measures_every_bar_within_its_time(tmp_path: Path) -> None:
    begun = time.monotonic()
    command = [sys.executable, "-m", "waystation.cli.main", "bench", "pools", "--quick", "--json"]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=280, check=False
    )
    report = json.loads(done.stdout)
    assert {bar["name"]: bar["bar"] for bar in report["bars"]} == BARS
    assert all(bar["value"] is not None for bar in report["bars"])
    # On a machine that does nothing else it is a minute.
    assert report["seconds"] < 150
    assert report["seconds"] < time.monotonic() - begun
