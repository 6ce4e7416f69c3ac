"""The table of transitions: complete, and the only one."""

from __future__ import annotations

import itertools

import pytest

from waystation.errors import IllegalTransitionError
from waystation.transactions.states import TRANSITIONS, State, Status, chart, check

VERBS = {each.verb for each in TRANSITIONS}


def test_what_is_in_the_table_is_allowed_and_nothing_else() -> None:
    allowed = {(each.from_, each.verb, each.to) for each in TRANSITIONS}
    refused = 0
    for row in itertools.product((None, *State), VERBS, State):
        if row in allowed:
            check(*row)
        else:
            with pytest.raises(IllegalTransitionError) as caught:
                check(*row)
            assert caught.value.from_state == (row[0] or "nothing")
            assert caught.value.to_state == row[2]
            refused += 1
    assert refused > len(allowed)


def test_an_illegal_transition_names_both_states() -> None:
    with pytest.raises(IllegalTransitionError, match="from complete to running"):
        check(State.COMPLETE, "claim", State.RUNNING)


def test_nothing_leaves_the_end_and_every_other_state_can_be_left_and_reached() -> None:
    """What is settled never changes."""
    assert not [each for each in TRANSITIONS if each.from_ is State.COMPLETE]
    for state in set(State) - {State.COMPLETE}:
        assert [each for each in TRANSITIONS if each.from_ is state and each.to is not state]
    for state in State:
        assert [each for each in TRANSITIONS if each.to is state and each.from_ is not state]


def test_no_row_is_there_twice() -> None:
    rows = [(each.from_, each.verb, each.to) for each in TRANSITIONS]
    assert len(rows) == len(set(rows))


def test_every_state_can_end() -> None:
    """From wherever it is, a way of table rows leads to complete."""
    ends = {State.COMPLETE}
    while more := {each.from_ for each in TRANSITIONS if each.to in ends and each.from_} - ends:
        ends |= more
    assert ends == set(State)


def test_the_chart_has_every_state_and_every_verb() -> None:
    lines = chart().splitlines()
    assert lines[0] == "stateDiagram-v2"
    assert "    [*] --> queued: start, fan_out" in lines
    assert "    queued --> running: claim" in lines
    for name in (*State, *VERBS):
        assert any(name in line for line in lines), name


def test_final_statuses_are_six() -> None:
    assert sorted(Status) == [
        "aborted",
        "cancelled",
        "failed",
        "internal-error",
        "success",
        "timeout",
    ]
