"""Setting up: every way in which a fresh machine can fall short is told in one sentence."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def setup(tmp_path: Path) -> ModuleType:
    """The set-up script as a module, pointed at an empty folder."""
    spec = importlib.util.spec_from_file_location("setup_script", ROOT / "scripts" / "setup.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.VENV = tmp_path / ".venv"  # type: ignore[attr-defined]
    return module


def test_an_old_python_is_told_which_one_is_needed(
    setup: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["setup.py", "core"])
    monkeypatch.setattr(sys, "version_info", (3, 9, 2, "final", 0))

    assert setup.main() == 1
    assert "Python 3.11 or newer is needed, this is 3.9.2" in capsys.readouterr().err


def test_a_missing_venv_module_is_told_with_its_package(
    setup: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["setup.py", "core"])
    # An interpreter that cannot make environments, as on a bare Debian.
    monkeypatch.setattr(sys, "executable", "/bin/false")

    assert setup.main() == 1
    assert "python3-venv" in capsys.readouterr().err


@pytest.mark.slow
def test_what_is_installed_is_not_installed_again() -> None:
    first = subprocess.run(
        ["make", "dev"], cwd=ROOT, capture_output=True, text=True, timeout=300, check=True
    )
    second = subprocess.run(
        ["make", "dev"], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )

    assert "making .venv" not in first.stdout
    assert "installing" not in second.stdout


def test_an_unknown_part_is_told(setup: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["setup.py", "everything"])

    assert setup.main() == 1


def test_no_constraint_names_an_address() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()

    assert len(lines) > 50
    for line in lines[1:]:
        assert "://" not in line
        assert line.count("==") == 1


def test_package_states_its_licence_and_ships_the_files_of_the_project() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    text = (ROOT / "LICENSE").read_text()

    assert project["project"]["license"] == "Apache-2.0"
    assert project["project"]["license-files"] == ["LICENSE"]
    assert "Apache License" in text
    assert "END OF TERMS AND CONDITIONS" in text
    shipped = project["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]
    for name in ("LICENSE", "SECURITY.md", "CODE_OF_CONDUCT.md", "CONTRIBUTING.md"):
        assert (ROOT / name).is_file()
        assert name in shipped
