"""What the pages on topics tell people to type does what they say, line by line."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Run
from tests.cli.test_topic_commands import here  # noqa: F401 (a fixture)
from tests.test_examples import ROOT, as_curl_would
from waystation.testing import Station

TOPICS = ROOT / "docs" / "concepts" / "topics.md"
PRODUCING = ROOT / "docs" / "guides" / "producing.md"
BROWSING = ROOT / "docs" / "guides" / "browsing.md"


@pytest.fixture
def station() -> Iterator[Station]:
    """One of its own for each test: the pages count versions from the first."""
    with Station() as fresh:
        yield fresh


def blocks(page: Path, kind: str) -> list[str]:
    """Blocks of code of a page, lines that go on joined."""
    found = re.findall(rf"```{kind}\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    return [block.replace("\\\n", " ") for block in found]


def lines_of(page: Path, program: str) -> list[str]:
    """Lines of a page that begin with a program's name."""
    lines = [line for block in blocks(page, "sh") for line in block.splitlines()]
    return [line for line in lines if line.startswith(f"{program} ")]


def documents(page: Path) -> list[str]:
    return blocks(page, "json")


def test_the_lines_of_topics_md_work_from_the_first_to_the_last(station: Station) -> None:
    answers = [json.loads(as_curl_would(line, station.url)) for line in lines_of(TOPICS, "curl")]

    assert len(answers) == 6
    created, where, added, switched, changed, state = answers
    assert (created["name"], created["version"]) == ("orders", 1)
    assert [each["partition"] for each in where["positions"]] != []
    assert (added["storage"][1]["factor"], added["produce_pointer"]) == (3, 0)
    assert switched["produce_pointer"] == 1
    assert changed["options"]["dedup_seconds"] == 600
    assert len(state["partitions"]) == 16


def test_the_lines_of_producing_md_work_from_the_first_to_the_last(
    station: Station, tmp_path: Path
) -> None:
    shown = documents(PRODUCING)
    (tmp_path / "batch.json").write_text(next(each for each in shown if '"messages"' in each))

    answers = [
        json.loads(as_curl_would(line, station.url, tmp_path))
        for line in lines_of(PRODUCING, "curl")
    ]

    created, receipt, found, batch = answers
    assert created["name"] == "orders"
    told = json.loads(shown[0])
    assert list(receipt) == list(told)
    same = ("id", "storage", "partition", "offset", "duplicate", "durability")
    assert [receipt[name] for name in same] == [told[name] for name in same]
    assert [each["message"]["data"] for each in found["messages"]] == [{"total": 12.5}]
    assert batch["results"][0]["offset"] == 1
    assert [each.get("error") for each in batch["results"]] == [None] * 3


def test_the_lines_of_browsing_md_work_from_the_first_to_the_last(station: Station) -> None:
    for line in lines_of(PRODUCING, "curl")[:2]:
        as_curl_would(line, station.url)

    page, where, state = (
        json.loads(as_curl_would(line, station.url)) for line in lines_of(BROWSING, "curl")
    )

    told = json.loads(documents(BROWSING)[0])
    assert list(page) == list(told)
    assert list(page["messages"][0]) == list(told["messages"][0])
    assert page["messages"][0]["message"] == told["messages"][0]["message"]
    assert where["consistent"] is True
    assert state["messages"] == 1


def test_the_python_of_producing_md_works(
    station: Station, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WAYSTATION_URL", station.url)
    (code,) = blocks(PRODUCING, "python")
    names: dict[str, Any] = {"orders": [{"customer": f"customer-{n % 2}"} for n in range(10)]}

    exec(code, names)

    assert names["receipt"].id == "order-17"
    assert len(names["receipts"]) == 10


@pytest.mark.parametrize(("page", "count"), [(PRODUCING, 6)])
def test_the_commands_work_from_the_first_to_the_last(
    here: Run,  # noqa: F811 (the fixture)
    station: Station,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    page: Path,
    count: int,
) -> None:
    (tmp_path / "orders.jsonl").write_text('{"customer": "customer-6"}\n' * 3)
    lines = [line for line in lines_of(page, "waystation") if " topic " in line]
    assert len(lines) == count

    said = {}
    with open(tmp_path / "orders.jsonl", encoding="utf-8") as orders:
        monkeypatch.setattr("sys.stdin", orders)
        for line in lines:
            _, verb, *words = shlex.split(line.partition("<")[0], comments=True)[1:]
            if verb == "tail":
                continue  # It has no end; it has tests of its own.
            done = here("topic", verb, *words, "--url", station.url)
            assert done.returncode == 0, (line, done)
            said[verb] = done.stdout

    assert '{"total": 12.50}' in said["browse"]
