"""The bar of a job: how far, how fast, how long yet, on a terminal alone."""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console

from waystation.cli import job_bar as module
from waystation.cli.job_bar import job_bar

Told = tuple[int, int, str]


def shown(monkeypatch: pytest.MonkeyPatch, *told: Told, terminal: bool, hidden: bool) -> str:
    written = io.StringIO()
    console = Console(file=written, force_terminal=terminal, width=120)
    monkeypatch.setattr(module, "problems", console)
    with job_bar(hidden=hidden) as tell:
        for each in told:
            tell(*each)
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", written.getvalue())


def test_on_a_terminal_it_shows_what_is_done_of_how_much_and_how_fast(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told = [(done, 1000, "rows") for done in (0, 250, 500)]
    text = shown(monkeypatch, *told, terminal=True, hidden=False)
    assert re.search(r"rows .* 500/1000 [0-9,]+/s 0:00:0\d 0:00:0\d", text), text


def test_what_comes_next_is_reckoned_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    told = [(0, 1000, "rows"), (1000, 1000, "rows"), (1, 4, "offsets")]
    text = shown(monkeypatch, *told, terminal=True, hidden=False)
    assert re.search(r"offsets .* 1/4  *0:00:0\d -:--:--", text), text


@pytest.mark.parametrize(("terminal", "hidden"), [(False, False), (True, True)])
def test_elsewhere_nothing_is_shown(
    monkeypatch: pytest.MonkeyPatch, terminal: bool, hidden: bool
) -> None:
    text = shown(monkeypatch, (1, 2, "rows"), terminal=terminal, hidden=hidden)
    assert text.strip() == ""
