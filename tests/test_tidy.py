"""House style that a script can check: import direction, clock, dead modules, leftovers, links."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "waystation"
MODULES = sorted(SOURCE.rglob("*.py"))
#: What Spark imports by its name; it only leads to us.
PLUGINS = sorted((ROOT / "src").glob("pyspark_*/**/*.py"))
TEXTS = [
    *MODULES,
    *PLUGINS,
    *sorted(SOURCE.rglob("*.lua")),
    *sorted((ROOT / "tests").rglob("*.py")),
    *sorted((ROOT / "scripts").glob("*.py")),
    *sorted((ROOT / "examples").rglob("*.py")),
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted(ROOT.glob("*.md")),
]

#: Arrows point down: a part may import parts of a lower rank and itself, nothing else.
RANKS = {
    "errors": 0,
    "config": 1,
    "config_sources": 2,
    "telemetry": 3,
    "runtime": 2,
    "messages": 4,
    "client": 4,
    "database": 4,
    "store": 4,
    "archive": 5,
    "catalogue": 5,
    "db": 6,
    "access": 6,
    "channels": 7,
    "delivery": 6,
    "logs": 5,
    "pools": 7,
    "topics": 7,
    "transactions": 7,
    "history": 9,
    "history_role": 8,
    "acapy": 8,
    "subscriptions": 8,
    "node_delivery": 8,
    "node_upkeep": 8,
    "reach": 8,
    "node": 9,
    "api": 10,
    "relay": 11,
    "demo": 11,
    "testing": 11,
    "bench": 12,
    "cli": 13,
}
#: May ask the operating system for the time; everyone else has a Clock or the event loop.
TIME_KEEPERS = {
    "runtime/clock.py": "the clock itself",
    "bench": "measures real time",
    "demo": "tells people how long something took",
    "store/embedded/server.py": "waits for processes",
    "store/embedded/supervisor.py": "waits for processes, and has no library of ours",
    "store/time_machine.py": "whether a process is alive is not a matter of test time",
    "runtime/logging.py": "formats stamps that the logging library took",
}
ENTRY_POINTS = {"cli/main.py", "store/embedded/supervisor.py", "testing/plugin.py", "__init__.py"}


def name_of(file: Path) -> str:
    return file.relative_to(SOURCE).as_posix()


def part_of(file: Path) -> str:
    return file.relative_to(SOURCE).parts[0].removesuffix(".py")


def imports_of(file: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            for alias in node.names:
                yield f"{node.module}.{alias.name}"
        elif isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name


@pytest.mark.parametrize("file", MODULES, ids=name_of)
def test_imports_point_down(file: Path) -> None:
    part = part_of(file)
    if part == "__init__":
        return
    for module in imports_of(file):
        if not module.startswith("waystation."):
            continue
        other = module.split(".")[1]
        if other not in RANKS or other == part:
            continue
        assert RANKS[other] < RANKS[part], f"{part} must not import {module}"


@pytest.mark.parametrize("file", MODULES, ids=name_of)
def test_module_has_docstring(file: Path) -> None:
    assert ast.get_docstring(ast.parse(file.read_text(encoding="utf-8")))


@pytest.mark.parametrize("file", MODULES, ids=name_of)
def test_time_comes_from_the_clock(file: Path) -> None:
    if name_of(file) in TIME_KEEPERS or part_of(file) in TIME_KEEPERS:
        return
    asked = re.findall(r"\btime\.(?:time|monotonic|perf_counter)\w*\(", file.read_text())
    assert not asked, "take a Clock, or the event loop's time"


@pytest.mark.parametrize("file", MODULES, ids=name_of)
def test_public_names_are_sorted(file: Path) -> None:
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__":
            names = ast.literal_eval(node.value)
            assert list(names) == sorted(names)


def test_no_module_is_dead() -> None:
    used = {module for file in (*MODULES, *PLUGINS) for module in imports_of(file)}
    # Commands are imported by name.
    main = (SOURCE / "cli" / "main.py").read_text(encoding="utf-8")
    used |= {f"waystation.cli.{name}" for name in re.findall(r': \("(\w+)", "\w+"\),', main)}
    for file in MODULES:
        if name_of(file) in ENTRY_POINTS or file.name == "__init__.py":
            continue
        module = "waystation." + name_of(file).removesuffix(".py").replace("/", ".")
        assert module in used, f"nobody imports {module}"


@pytest.mark.parametrize("file", TEXTS, ids=lambda file: file.relative_to(ROOT).as_posix())
def test_nothing_is_left_over(file: Path) -> None:
    if file == Path(__file__):
        return
    text = file.read_text(encoding="utf-8")
    left = re.search(r"\b(TODO|FIXME|XXX|HACK|NotImplementedError)\b", text)
    assert left is None, f"unfinished: {left}"
    assert "\t" not in text
    if file.suffix == ".py":
        # A pragma at the end of a line does not count: it cannot stand anywhere else.
        lines = re.sub(r"  # (noqa|type:).*", "", text).splitlines()
        assert not [line for line in lines if len(line) > 100]


def test_every_page_of_the_docs_is_reachable_and_every_link_leads_somewhere() -> None:
    pages = {*(ROOT / "docs").rglob("*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"}
    linked: set[Path] = {ROOT / "README.md"}
    for page in pages:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            found = (page.parent / target).resolve()
            assert found.exists(), f"{page.name} links to {target}, which does not exist"
            linked.add(found)
    assert {page.resolve() for page in pages} <= linked


def test_every_promise_names_tests_that_exist() -> None:
    text = (ROOT / "docs" / "guarantees.md").read_text(encoding="utf-8")
    named = re.findall(r"`(tests/[a-z_/]+\.py)(?:::(\w+))?`", text)
    assert len(named) > 20
    for file, name in named:
        assert (ROOT / file).exists(), f"there is no {file}"
        assert f"def {name}" in (ROOT / file).read_text(encoding="utf-8"), f"no {name} in {file}"


def test_texts_name_the_design_they_mean() -> None:
    """A document's number says nothing to a reader; docs/design-decisions.md names the designs."""
    files = [file for file in TEXTS if file != Path(__file__)]
    numbered = re.compile(r"\bseed 00\d\b", re.IGNORECASE)
    assert [file for file in files if numbered.search(file.read_text(encoding="utf-8"))] == []
