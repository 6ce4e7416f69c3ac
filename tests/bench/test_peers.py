"""Peers: an environment of their own, made once; one that is missing fails its bar by name."""

from __future__ import annotations

import subprocess
import zipfile
from pathlib import Path

import pytest

from waystation_bench.benchmark import Benchmark, Run
from waystation_bench.peers import Peer, ensure_peer
from waystation_bench.report import Promise, Sample, row_of
from waystation_bench.runner import run_benchmark

MISSING = Peer("ghost", ("/nowhere/ghost-1.0-py3-none-any.whl",))


def wheel(folder: Path) -> Path:
    """The smallest package that pip installs: one module, no download."""
    path = folder / "tiny_peer-1.0-py3-none-any.whl"
    info = "tiny_peer-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("tiny_peer.py", "ANSWER = 42\n")
        archive.writestr(
            f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-peer\nVersion: 1.0\n"
        )
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")
    return path


@pytest.mark.slow
def test_a_peer_gets_an_environment_of_its_own_which_is_made_once(tmp_path: Path) -> None:
    # Given a peer that was never installed
    peer = Peer("tiny", (str(wheel(tmp_path)),))

    # When it is asked for
    python = ensure_peer(peer, tmp_path / "peers")

    # Then its interpreter has it, and does not have us
    code = (
        "import tiny_peer, importlib.util as u; print(tiny_peer.ANSWER, u.find_spec('waystation'))"
    )
    isolated = [python, "-I", "-c", code]
    said = subprocess.run(isolated, capture_output=True, text=True, check=True).stdout
    assert said.strip() == "42 None"

    # And when it is asked for again, nothing is made anew
    made = (python.parent.parent / "pyvenv.cfg").stat().st_mtime_ns
    assert ensure_peer(peer, tmp_path / "peers") == python
    assert (python.parent.parent / "pyvenv.cfg").stat().st_mtime_ns == made


@pytest.mark.slow
def test_a_missing_peer_makes_its_bar_fail_by_name_and_the_others_are_judged(
    tmp_path: Path,
) -> None:
    # Given a benchmark with a peer that cannot be installed, and a bar that needs it
    def measure(run: Run, folder: Path) -> None:
        sample = Sample(operations=10, seconds=1, cpu_seconds=1, store_cpu_seconds=1)
        run.rows.append(row_of("ours", "memory", "caller", [sample]))
        if "ghost" in run.peers:
            run.rows.append(row_of("ghost", "memory", "caller", [sample]))

    benchmark = Benchmark(
        name="haunted",
        asks="?",
        peers=(MISSING,),
        measure=measure,
        promises=(
            Promise(
                name="ours_vs_ghost",
                bar=0.1,
                at="least",
                value=lambda rows: rows["ours@memory"].rate / rows["ghost@memory"].rate,
                meaning="",
            ),
            Promise(
                name="ours_rate",
                bar=1,
                at="least",
                value=lambda rows: rows["ours@memory"].rate,
                meaning="",
            ),
        ),
    )

    # And an installation of it that was interrupted: an interpreter, but no stamp
    (tmp_path / "peers" / "ghost" / "bin").mkdir(parents=True)
    (tmp_path / "peers" / "ghost" / "bin" / "python").touch()

    # When it is run
    report = run_benchmark(
        benchmark, quick=True, progress=lambda *_: None, peers_folder=tmp_path / "peers"
    )

    # Then nobody was beaten by not being there
    by_name = {bar.name: bar for bar in report.bars}
    assert (by_name["ours_vs_ghost"].value, by_name["ours_vs_ghost"].holds) == (None, False)
    assert by_name["ours_rate"].holds
    assert not report.holds
    assert report.notes[0].startswith("The peer ghost cannot be installed:")
    assert "ours_vs_ghost" in report.notes[1]
