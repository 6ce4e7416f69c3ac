"""The example that everyone reads runs as it is printed: over kill -9, and over three days."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import clean_environment, running_station
from tests.test_examples import ROOT
from waystation.client import Transaction

EXAMPLE = ROOT / "examples" / "refund"
#: Where the printed client looks for its station; tests have one at another port.
PRINTED_URL = "http://127.0.0.1:7070"
PAGE = ROOT / "docs" / "concepts" / "transactions.md"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(EXAMPLE, tmp_path / "refund"))


@contextmanager
def station(folder: Path, port: int = 0, command: str = "serve") -> Iterator[dict[str, Any]]:
    """`serve` or `dev` as a user runs it, with the app of the folder."""
    options = ["--insecure"] if command == "serve" else ["--time-machine"]
    arguments = (command, "--app", "refund:app", "--port", str(port), "--data", "data", *options)
    with running_station(folder, *arguments) as said:
        yield said


class Client:
    """Runs the statements of `ask.py` one after the other, in a Python of their own."""

    def __init__(self, folder: Path, url: str) -> None:
        text = (folder / "ask.py").read_text(encoding="utf-8")
        assert PRINTED_URL in text
        self._left = ast.parse(text.replace(PRINTED_URL, url)).body
        self._names: dict[str, Any] = {}

    def run(self, until: str = "") -> None:
        """Runs them up to the one that begins with these words, or all that are left."""
        while self._left and not (until and ast.unparse(self._left[0]).startswith(until)):
            statement = ast.Module([self._left.pop(0)], type_ignores=[])
            exec(compile(statement, "ask.py", "exec"), self._names)
        assert not until or self._left, f"no line begins with {until}"

    @property
    def tx(self) -> Transaction:
        found = self._names["tx"]
        assert isinstance(found, Transaction)
        return found

    def reach(self, code: str) -> None:
        """Looks until the transaction is where `why` has this code."""
        for _ in range(2000):
            found = self.tx.why().code
            if found == code:
                return
        raise AssertionError(f"{found}, not {code}")

    def close(self) -> None:
        self._names["ws"].close()


def paid(folder: Path) -> list[int]:
    """What the bank was asked to pay, request by request."""
    book = folder / "bank.txt"
    return [int(line.split()[1]) for line in book.read_text().splitlines()] if book.exists() else []


def test_the_files_are_what_is_printed() -> None:
    """Line by line; empty lines are the formatter's. `test_readme.py` compares the README."""
    found = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    (printed,) = [block for block in found if "refund/approve" in block]
    steps, _, asking = printed.partition("ws = ")

    for text, file in ((steps, "refund.py"), ("ws = " + asking, "ask.py")):
        lines = [line for line in text.splitlines() if line]
        kept = [line for line in (EXAMPLE / file).read_text(encoding="utf-8").splitlines() if line]
        assert kept[-len(lines) :] == lines


@pytest.mark.slow
def test_it_prints_what_it_says(folder: Path) -> None:
    with station(folder) as running:
        text = (folder / "ask.py").read_text(encoding="utf-8")
        (folder / "ask.py").write_text(text.replace(PRINTED_URL, running["url"]))
        for _ in range(2):  # The second time it is the same refund, and is told so.
            done = subprocess.run(
                [sys.executable, "ask.py"],
                cwd=folder,
                env=clean_environment(),
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )
            assert (done.returncode, done.stdout) == (0, "success\n"), done.stderr

    assert paid(folder) == [500]


@pytest.mark.slow
def test_it_ends_well_though_its_worker_is_killed_while_it_waits(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with station(folder) as first:
        client = Client(folder, first["url"])
        client.run(until="tx.set_switch")
        client.reach("waiting_switch")
        first["process"].kill()
        assert first["process"].wait(timeout=30) == -9
    port = int(first["url"].rpartition(":")[2])
    with station(folder, port):
        assert client.tx.get().status == "waiting_switch"
        client.run()
        assert client.tx.summary.output == {"paid": 500}
        client.close()

    assert capsys.readouterr().out == "success\n"
    assert paid(folder) == [500]


def test_it_fails_when_nobody_answers_for_three_days(folder: Path) -> None:
    with station(folder, command="dev") as running:
        client = Client(folder, running["url"])
        client.run(until="tx.set_switch")
        client.reach("waiting_switch")
        days = f'{{"seconds": {3 * 86_400}}}'.encode()
        urllib.request.urlopen(f"{running['url']}/v1/time/advance", days, timeout=30).close()
        ended = client.tx.wait("30s")
        client.close()

    assert (ended.status, ended.output) == ("failed", {"error": "nobody answered"})
    assert paid(folder) == []
