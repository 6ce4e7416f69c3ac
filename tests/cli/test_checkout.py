"""Commands whose code is part of the source checkout and not of the wheel."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

import waystation
from waystation.cli.checkout import require_checkout
from waystation.errors import SettingsError

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = [("bench/waystation_bench", "Benchmarks are"), ("examples/demo", "The demo is")]


@pytest.mark.parametrize(("package", "subject"), PACKAGES)
def test_require_checkout_in_a_checkout_accepts_the_package(package: str, subject: str) -> None:
    require_checkout(package, subject)


@pytest.mark.parametrize(("package", "subject"), PACKAGES)
def test_require_checkout_in_a_wheel_is_rejected(
    package: str, subject: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = tmp_path / "lib" / "site-packages" / "waystation" / "__init__.py"
    monkeypatch.setattr(waystation, "__file__", str(installed))

    with pytest.raises(SettingsError, match=f"^{subject} part of the source checkout"):
        require_checkout(package, subject)


def test_wheel_contains_no_benchmarks_and_no_demo_and_the_sdist_contains_both() -> None:
    targets = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"][
        "targets"
    ]

    assert all(each.startswith("src/") for each in targets["wheel"]["packages"])
    assert not (ROOT / "src" / "waystation" / "bench").exists()
    assert not (ROOT / "src" / "waystation" / "demo").exists()
    assert {"bench", "examples"} <= set(targets["sdist"]["include"])
