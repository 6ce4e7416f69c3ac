"""Outcomes: what users may return, what is made of it, and what is refused where it is made."""

from __future__ import annotations

import random
from datetime import timedelta
from typing import Any

import pytest

import waystation
from waystation import Abort, Child, Fail, Parallel, RetryLater, Wait
from waystation.errors import InvalidInputError, NotFiniteError, SwitchInvalidError
from waystation.transactions.outcomes import (
    CHILDREN_MAX,
    Call,
    Calls,
    Failure,
    Outcome,
    Pause,
    Success,
    settle,
)

GIVEN = b'{"cents": 12345678901234567890}'
TWO_DAYS_MS = 2 * 86_400_000


@pytest.mark.parametrize(
    ("returned", "outcome"),
    [
        (None, Success(GIVEN)),
        ({"a": 1}, Success(b'{"a":1}')),
        ([1, 2], Success(b"[1,2]")),
        (False, Success(b"false")),
        ("", Success(b'""')),
        (12345678901234567890123, Success(b"12345678901234567890123")),
        (Fail("no"), Failure("failed", b'{"error":"no"}', "no")),
        (Fail("no", {"code": 7}), Failure("failed", b'{"code":7}', "no")),
        (Fail("no", None), Failure("failed", b"null", "no")),
        (Fail(), Failure("failed", b'{"error":""}')),
        (Abort("stop"), Failure("aborted", b'{"error":"stop"}', "stop")),
        (RetryLater(), Pause()),
        (RetryLater("30s"), Pause(delay_ms=30_000)),
        (RetryLater(0.001, "soon"), Pause(delay_ms=1, note="soon")),
        (RetryLater(timedelta(days=3)), Pause(delay_ms=3 * 86_400_000)),
        (Wait("approved"), Pause(switch="approved")),
        (Wait("approved", at_most="2d"), Pause(switch="approved", at_most_ms=TWO_DAYS_MS)),
        (Child("ship"), Call("ship", GIVEN)),
        (Child("ship", {"to": "me"}), Call("ship", b'{"to":"me"}')),
        (Child("ship", None), Call("ship", b"null")),
        (Parallel([]), Success(b"[]")),
        (
            Parallel([Child("a"), Child("b", 1)], on_failure="wait_all"),
            Calls((Call("a", GIVEN), Call("b", b"1")), "wait_all"),
        ),
        (Parallel((Child("a"),)), Calls((Call("a", GIVEN),), "cancel_rest")),
    ],
)
def test_a_returned_value_has_one_meaning(returned: object, outcome: Outcome) -> None:
    assert settle(returned, GIVEN) == outcome


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: Wait("approved", at_most="2 days"), "at_most"),
        (lambda: Wait("approved", at_most=-1), "at_most"),
        (lambda: RetryLater("soon"), "delay"),
        (lambda: RetryLater("1s", factor=0.5), "factor"),
        (lambda: RetryLater("1s", jitter=2), "jitter"),
        (lambda: RetryLater("1s", delay_max="never"), "delay_max"),
        (lambda: Fail({"a": 1}), "note"),  # type: ignore[arg-type]
        (lambda: Child("Not a name"), "pipeline"),
        (lambda: Parallel(["a"]), "children"),  # type: ignore[list-item]
        (lambda: Parallel([Child("a")] * (CHILDREN_MAX + 1)), "children"),
        (lambda: Parallel([], on_failure="hope"), "on_failure"),  # type: ignore[arg-type]
    ],
)
def test_what_cannot_be_meant_is_refused_where_it_is_made(make: Any, field: str) -> None:
    with pytest.raises(InvalidInputError) as refused:
        make()
    assert refused.value.field == field


@pytest.mark.parametrize("name", ["", "a b", "a,b", "a=b", "!a", "x" * 33, "a\n", "é", None])
def test_a_switch_has_a_name_that_can_be_kept(name: str) -> None:
    with pytest.raises(SwitchInvalidError):
        Wait(name)


def test_a_thousand_children_are_not_too_many() -> None:
    outcome = settle(Parallel([Child("a")] * CHILDREN_MAX), GIVEN)
    assert isinstance(outcome, Calls)
    assert len(outcome.children) == CHILDREN_MAX


def test_a_delay_grows_up_to_its_end_and_varies_by_its_share() -> None:
    growing = RetryLater("1s", factor=2, delay_max="5s")
    rng = random.Random(1)
    assert [growing.delay_ms(n, rng) for n in (0, 1, 2, 3, 500)] == [1000, 2000, 4000, 5000, 5000]

    varied = RetryLater("1s", jitter=0.2)
    delays = [varied.delay_ms(0, rng) or 0 for _ in range(200)]
    assert 800 <= min(delays) < 850
    assert 1150 < max(delays) <= 1200


def test_a_delay_that_does_not_grow_is_exactly_what_was_asked_for() -> None:
    # Also beyond what a growing one would end at.
    assert RetryLater("3h").delay_ms(7, random.Random()) == 3 * 3_600_000


def test_a_long_note_is_cut() -> None:
    outcome = settle(Fail("x" * 10_000, {}), GIVEN)
    assert isinstance(outcome, Failure)
    assert len(outcome.note) == 500


def test_every_public_name_can_be_had_and_nothing_else() -> None:
    for name in waystation.__all__:
        assert getattr(waystation, name) is not None
    assert waystation.Fail is Fail
    with pytest.raises(AttributeError, match="no attribute 'Succeed'"):
        waystation.Succeed  # type: ignore[attr-defined]  # noqa: B018


@pytest.mark.parametrize(
    ("returned", "field"),
    [
        ({"rate": float("nan")}, "output.rate"),
        (float("inf"), "output"),
        (Fail("no", {"rate": float("nan")}), "output.rate"),
        (Abort("no", [float("-inf")]), "output[0]"),
        (Child("ship", {"rate": float("nan")}), "input.rate"),
        (Parallel([Child("a"), Child("b", [float("nan")])]), "input[0]"),
    ],
)
def test_settle_value_that_is_not_finite_names_its_field(returned: object, field: str) -> None:
    with pytest.raises(NotFiniteError) as refused:
        settle(returned, GIVEN)
    assert refused.value.field == field
