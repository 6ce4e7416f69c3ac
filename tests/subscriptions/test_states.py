"""The table of states: the chart says the same, and every move of the model is in it."""

from __future__ import annotations

import random
import re

from tests.models.groups import Budget, Entry, GroupModel
from tests.test_examples import ROOT
from waystation.subscriptions.states import TRANSITIONS, GroupState, chart

MODEL = GroupModel(
    ((0, 0, 0, 0),),
    Budget(takeovers=1, redrives=2, skips=1, changes=1),
    outcomes=("ok", "again", "never"),
    delayed=frozenset({(0, 2)}),
)


def state_of(entry: Entry | None) -> GroupState:
    if entry is None:
        return GroupState.CLEAN
    if entry.dp > entry.dc and entry.upto:
        return GroupState.REDRIVING
    return GroupState.RETRYING if entry.rp > entry.rc else GroupState.PARKED


def test_every_move_of_the_model_is_in_the_table() -> None:
    allowed = {(row.from_, row.to) for row in TRANSITIONS}
    seen = set()
    rng = random.Random(1)
    for _ in range(300):
        world = MODEL.begin()
        for _ in range(60):
            steps = list(MODEL.steps(world))
            if not steps:
                break
            _, after = rng.choice(steps)
            move = tuple(state_of(each.shards[0].entries[0]) for each in (world, after))
            if move[0] is not move[1]:
                assert move in allowed, f"{move} is not in the table"
                seen.add(move)
            world = after
    # Not in every walk: a redrive that begins while the rest still follows, and how that ends.
    follows = {GroupState.REDRIVING, GroupState.RETRYING}
    common = {move for move in allowed if move[0] is not move[1] and set(move) != follows}
    assert seen >= common


def test_the_chart_has_an_arrow_for_every_row() -> None:
    lines = chart().splitlines()
    assert lines[0] == "stateDiagram-v2"
    for row in TRANSITIONS:
        (line,) = [each for each in lines if each.startswith(f"    {row.from_} --> {row.to}:")]
        assert row.what in line


def test_the_chart_of_the_guide_has_every_state_and_no_arrow_that_the_table_has_not() -> None:
    text = (ROOT / "docs" / "guides" / "dead-letters.md").read_text(encoding="utf-8")
    (drawn,) = re.findall(r"^```mermaid\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    arrows = re.findall(r"^    (\w+) --> (\w+): \S", drawn, re.MULTILINE)
    assert set(arrows) <= {(row.from_.value, row.to.value) for row in TRANSITIONS}
    assert {state for arrow in arrows for state in arrow} == {each.value for each in GroupState}


def test_no_row_is_there_twice() -> None:
    rows = [(row.from_, row.what, row.to) for row in TRANSITIONS]
    assert len(set(rows)) == len(rows)
