"""The pages of topics: their commands, requests and programs, run in order on an empty server.

A `text` or `json` block directly below a `sh` block shows the output of that block. White space
does not count, and `…` stands for any text. Another `json` block with `"messages"` is the file
batch.json.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Run
from tests.cli.test_topic_commands import here  # noqa: F401 (a fixture)
from tests.helpers.server import background_station
from tests.test_examples import ROOT, as_curl_would
from waystation.config import Config
from waystation.testing.station import Serving

CONCEPT = ROOT / "docs" / "concepts" / "topics.md"
GUIDE = ROOT / "docs" / "guides" / "produce.md"
#: Standard input of `topic produce --stdin`.
ORDER_LINES = '{"customer": "customer-6"}\n' * 3


@pytest.fixture
def station(settings: Config, monkeypatch: pytest.MonkeyPatch) -> Iterator[Serving]:
    """Run an empty server for each page, because pages show versions and offsets from the first."""
    with background_station(settings) as fresh:
        monkeypatch.setenv("WAYSTATION_URL", fresh.url)
        yield fresh


def blocks_of(page: Path) -> Iterator[tuple[str, str, bool]]:
    """Yield language and text of each block of code, and whether it is directly below another."""
    text, end = page.read_text(encoding="utf-8"), 0
    for found in re.finditer(r"^```(\w*)\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
        yield found[1], found[2], not text[end : found.start()].strip()
        end = found.end()


def blocks(page: Path, language: str) -> list[str]:
    """Return the blocks of a language with continued lines joined."""
    return [text.replace("\\\n", " ") for found, text, _ in blocks_of(page) if found == language]


def documents(page: Path) -> list[str]:
    return blocks(page, "json")


def lines_of(page: Path, program: str) -> list[str]:
    """Return the shell lines of a page that start with the name of a program."""
    lines = [line for block in blocks(page, "sh") for line in block.splitlines()]
    return [line for line in lines if line.startswith(f"{program} ")]


def commands_of(block: str) -> list[str]:
    return [line for line in block.replace("\\\n", " ").splitlines() if line]


def matches(output: str, shown: str) -> bool:
    expected, actual = ("".join(text.split()) for text in (shown, output))
    return bool(re.fullmatch(re.escape(expected).replace("…", ".*"), actual))


class PageRunner:
    """Runs the blocks of a page and collects what they print."""

    def __init__(self, station: Serving, cli: Run, folder: Path) -> None:
        self._station = station
        self._cli = cli
        self._folder = folder
        self.compared = 0
        #: Names that the programs of the page use and define.
        self.names: dict[str, Any] = {
            "orders": [{"customer": f"customer-{number % 2}"} for number in range(10)]
        }

    def run(self, page: Path) -> None:
        before, output = "", ""
        for language, block, is_below in blocks_of(page):
            if language == "sh":
                output = "".join(map(self._run, commands_of(block)))
            elif language == "python":
                exec(block, self.names)
            elif is_below and before == "sh" and language in ("text", "json"):
                assert matches(output, block), f"{page.name} shows\n{block}\nbut prints\n{output}"
                self.compared += 1
            elif '"messages"' in block:
                (self._folder / "batch.json").write_text(block, encoding="utf-8")
            before = language

    def _run(self, line: str) -> str:
        if line.startswith("curl "):
            return as_curl_would(line, self._station.url, self._folder)
        program, part, verb, *words = shlex.split(line.partition("<")[0])
        assert (program, part) == ("waystation", "topic"), line
        if verb == "tail":
            return ""  # It does not end; tests/cli/test_topic_commands.py tests it.
        done = self._cli(part, verb, *words)
        assert done.returncode == 0, (line, done)
        return done.stdout


@pytest.mark.parametrize(("page", "outputs"), [(CONCEPT, 4), (GUIDE, 4)], ids=["concept", "guide"])
def test_page_of_topics_run_in_order_prints_what_it_shows(
    here: Run,  # noqa: F811 (the fixture)
    station: Serving,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    page: Path,
    outputs: int,
) -> None:
    (tmp_path / "orders.jsonl").write_text(ORDER_LINES)
    runner = PageRunner(station, here, tmp_path)

    with open(tmp_path / "orders.jsonl", encoding="utf-8") as orders:
        monkeypatch.setattr("sys.stdin", orders)
        runner.run(page)

    assert runner.compared == outputs
    if page == GUIDE:
        assert runner.names["receipt"].id == "invoice-17"
        assert len(runner.names["receipts"]) == 10


@pytest.mark.parametrize(
    ("output", "shown", "expected"),
    [
        ("a  b\n", "a b", True),
        ('{"id":"x","ms":17}', '{"id": "x", "ms": …}', True),
        ("a b c", "a b", False),
        ('{"id":"y","ms":17}', '{"id": "x", "ms": …}', False),
    ],
)
def test_matches_of_output_ignores_white_space_and_wildcards(
    output: str, shown: str, expected: bool
) -> None:
    assert matches(output, shown) is expected
