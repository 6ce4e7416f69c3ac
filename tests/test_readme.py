"""The README and the first page of the docs do what they show, on an empty server, in order.

An HTML comment before a block says what the test does with it, if it does not simply run it:
`server`, `skip (reason)`, `file NAME` (save it) and `from FILE` (compare it). Shell lines that end
with `&` run until the end of the page. A line `# …` below a command, or a comment behind a `print`,
shows output that must appear; `…` stands for any text.
"""

from __future__ import annotations

import ast
import contextlib
import io
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import typer.main

from tests.cli.conftest import clean_environment, running_station
from tests.test_examples import ROOT, as_curl_would
from tests.transactions.test_reaching_guide import free_port
from waystation.cli.main import build_app

README = ROOT / "README.md"
FIRST = ROOT / "docs" / "start" / "first-station.md"
#: Where the pages have their server and the endpoint; tests use other ports.
STATION, HOOK = "127.0.0.1:7070", "127.0.0.1:9000"
_SECONDS_MAX = 900


class Block(NamedTuple):
    """A block of code of a page."""

    kind: str
    #: What its HTML comment says; empty without one.
    told: str
    text: str


def blocks_of(page: Path) -> list[Block]:
    found = re.findall(
        r"(?:<!-- test: ([^\n]*) -->\n)?```(sh|python)\n(.*?)```",
        page.read_text(encoding="utf-8"),
        re.DOTALL,
    )
    return [Block(kind, told, text) for told, kind, text in found]


def commands_of(block: str) -> Iterator[tuple[str, list[str]]]:
    """Each command of a shell block, with the lines of output that are shown below it."""
    command, shown = "", list[str]()
    for line in block.splitlines():
        if line.startswith("# "):
            shown.append(line.removeprefix("# "))
        else:
            if command:
                yield command, shown
            command, shown = line, []
    yield command, shown


def require_shown(output: str, shown: list[str]) -> None:
    """All lines that are shown are in the output, in their order; blanks may be wider."""
    pattern = ".*".join(
        r"\s+".join(re.escape(word).replace("…", ".*") for word in line.split()) for line in shown
    )
    assert re.search(pattern, output, re.DOTALL), f"{shown} is not in:\n{output}"


class Reader:
    """Somebody who types what a page shows, block by block."""

    def __init__(self, folder: Path, url: str) -> None:
        self._folder = folder
        self._url = url
        self._hook = f"127.0.0.1:{free_port()}"
        self._names: dict[str, Any] = {}
        self._running: list[subprocess.Popen[bytes]] = []
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        self._environment = {**clean_environment(), "PATH": path, "WAYSTATION_URL": url}

    def read(self, block: Block) -> None:
        text = block.text.replace("localhost:7070", STATION)
        text = text.replace(STATION, self._url.removeprefix("http://")).replace(HOOK, self._hook)
        if block.told.startswith("file "):
            (self._folder / block.told.removeprefix("file ")).write_text(text, encoding="utf-8")
        elif block.told.startswith("from "):
            require_printed(ROOT / block.told.removeprefix("from "), text)
        elif block.kind == "python":
            self._run_python(text)
        else:
            for command, shown in commands_of(text):
                require_shown(self.run(command), shown)

    def close(self) -> None:
        for process in self._running:
            process.send_signal(signal.SIGTERM)
        for process in self._running:
            process.wait(timeout=60)
        if "ws" in self._names:
            self._names["ws"].close()

    def output_of(self, number: int) -> str:
        """What a command has printed that was started with `&`, from the first one on."""
        return (self._folder / f"output-{number}.txt").read_text(encoding="utf-8")

    def run(self, command: str) -> str:
        """Run a command, as a reader types it; return its output."""
        if command.endswith("&"):
            return self._start(command.removesuffix("&").strip())
        if command.startswith("curl ") and shutil.which("curl") is None:
            return as_curl_would(command, self._url)
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=self._folder,
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=_SECONDS_MAX,
            check=False,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
        return done.stdout

    def _start(self, command: str) -> str:
        if command.endswith("endpoint.py"):
            command = f"{command} {self._hook.rpartition(':')[2]}"
        with (self._folder / f"output-{len(self._running)}.txt").open("wb") as output:
            process = subprocess.Popen(
                ["bash", "-c", f"exec {command}"],
                cwd=self._folder,
                env={**self._environment, "PYTHONUNBUFFERED": "1"},
                stdout=output,
                stderr=output,
            )
        self._running.append(process)
        return ""

    def _run_python(self, text: str) -> None:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(text, "page", "exec"), self._names)
        shown = [
            below or behind
            for below, behind in re.findall(r"^# (.*)$|^ *print\(.*\) +# (.*)$", text, re.MULTILINE)
        ]
        require_shown(printed.getvalue(), shown)


def require_printed(file: Path, text: str) -> None:
    """The statements of a block are the last ones of a file, apart from their layout."""
    kept, wanted = (ast.parse(each).body for each in (file.read_text(encoding="utf-8"), text))
    assert [ast.dump(each) for each in kept[-len(wanted) :]] == [ast.dump(each) for each in wanted]


@contextlib.contextmanager
def reader(folder: Path, *arguments: str, history: str = "--no-history") -> Iterator[Reader]:
    """Somebody with an empty server, in its folder."""
    with running_station(folder, "dev", "--port", "0", *arguments, history=history) as station:
        somebody = Reader(folder, station["url"])
        try:
            yield somebody
        finally:
            somebody.close()


def to_run(page: Path) -> list[Block]:
    """All blocks of a page after the one that starts the server."""
    blocks = [block for block in blocks_of(page) if not block.told.startswith("skip (")]
    assert blocks[0].told == "server"
    assert "waystation dev" in blocks[0].text
    return blocks[1:]


@pytest.mark.slow
def test_first_station_page_runs_in_order_on_an_empty_server(tmp_path: Path) -> None:
    blocks = to_run(FIRST)
    assert [block.kind for block in blocks] == ["sh", "sh", "python"]
    with reader(tmp_path) as somebody:
        for block in blocks:
            somebody.read(block)


@pytest.mark.slow
@pytest.mark.timeout(_SECONDS_MAX)
def test_readme_runs_in_order_on_an_empty_server(tmp_path: Path) -> None:
    """Everything, the data pipeline of the server included: this starts Spark as a user does."""
    folder = Path(shutil.copytree(ROOT / "examples", tmp_path / "examples")) / "refund"
    blocks = to_run(README)
    assert len(blocks) == 9
    with reader(folder, "--app", "refund:app", history="") as somebody:
        for block in blocks:
            somebody.read(block)
        somebody.run("waystation history sql --stop")
        assert somebody.output_of(0) == "".join(f"order-17 {{'n': {n}}}\n" for n in range(3))
        assert somebody.output_of(1) == "alice {'n': 1}\n"
    assert len((folder / "bank.txt").read_text(encoding="utf-8").splitlines()) == 1


def require_command(words: list[str]) -> None:
    """Parse a command and its arguments without running it."""
    left = list(words)
    found: Any = typer.main.get_command(build_app(words[0]))
    while hasattr(found, "get_command"):
        name = left.pop(0)
        found = found.get_command(None, name)
        assert found is not None, f"no command {name}"
    # Unknown options, missing arguments and bad values are errors here.
    found.make_context(name, left)


@pytest.mark.parametrize("page", [README, FIRST], ids=lambda page: page.name)
def test_page_shows_only_commands_that_exist(page: Path) -> None:
    """Fast: the command line parses every command of the page, and runs none."""
    shown = [
        shlex.split(command, comments=True)[1:]
        for block in blocks_of(page)
        if block.kind == "sh"
        for command, _ in commands_of(block.text)
        if command.startswith("waystation ")
    ]
    assert len(shown) > 3
    for words in shown:
        require_command(words)
