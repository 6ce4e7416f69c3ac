"""The audits of the order proof see what they are there to see."""

from __future__ import annotations

from collections.abc import Iterable

from tests.helpers.order_check import UNFIT, Records, double_problems, loss_problems, order_problems
from waystation.subscriptions.log_entry import AttemptDetail, Fact, pack_detail
from waystation.testing.endpoint import ReceivedRequest


def seen(*requests: tuple[str, int]) -> list[ReceivedRequest]:
    """The log of an endpoint."""
    return [
        ReceivedRequest("POST", "/", {"waystation-id": id_}, b"", 0.0, status, answered=status > 0)
        for id_, status in requests
    ]


def told(*facts: tuple[str, str, str, str, int, int], failure: str = "") -> Records:
    """A record log: kind, was, now, id, begun_after, epoch."""
    records = Records(0)
    for offset, (kind, was, now, id_, begun_after, epoch) in enumerate(facts):
        group = id_.rpartition("-")[0]
        detail = AttemptDetail(id=id_, group=group, failure=failure, begun_after=begun_after)
        fact = Fact(
            kind=kind,
            was=was,
            now=now,
            epoch=epoch,
            incarnation=1,
            attempt=1,
            verdict="",
            policy="park",
            detail=pack_detail(detail) if id_ else None,
        )
        records.add(offset, fact)
    return records


def order(requests: Iterable[ReceivedRequest], attempts_max: int | None = None) -> list[str]:
    return list(order_problems({"a": list(requests)}, attempts_max=attempts_max))


def test_a_group_in_order_has_no_problems_whatever_fails() -> None:
    good = seen(("a-0", 500), ("a-0", 0), ("a-0", 200), ("a-0", 200), ("a-1", 200))
    assert order(good) == []
    assert list(loss_problems({"a-0", "a-1"}, good)) == []


def test_whoever_comes_too_early_too_late_or_never_is_seen() -> None:
    assert order(seen(("a-0", 500), ("a-1", 200))) == ["a-1 came before 0 was taken or dead"]
    assert order(seen(("a-0", 200), ("a-1", 200), ("a-0", 200))) == ["a-0 came after 1"]
    assert order(seen(("a-0", 200), ("a-2", 200))) == ["a-2 came without 1"]
    assert list(loss_problems({"a-0"}, seen(("a-0", 500)))) == ["a-0 was never taken"]
    assert list(loss_problems(set(), seen(("a-0", 200)))) == ["a-0 was never produced"]


def test_under_skip_only_what_is_dead_lets_others_pass() -> None:
    dead = seen(("a-0", 500), ("a-0", 500), ("a-1", 200), ("a-0", 200))
    assert order(dead, attempts_max=2) == []
    assert order(seen(("a-0", UNFIT), ("a-1", 200), ("a-0", 200)), attempts_max=2) == []
    assert order(dead, attempts_max=3) != []


def test_the_records_tell_order_and_settled_once() -> None:
    good = told(
        ("attempt", "m0.0.0", "r1", "a-0", 0, 1),
        ("behind", "m0.0.1", "r2", "a-1", 0, 1),
        ("attempt", "r1", "-", "a-0", 1, 1),
        ("attempt", "r2", "-", "a-1", 3, 1),
    )
    assert list(good.problems()) == []
    early = told(("attempt", "m0.0.0", "-", "a-0", 0, 1), ("attempt", "m0.0.1", "-", "a-1", 0, 1))
    assert list(early.problems()) == ["a-1 was attempted before a-0 was settled"]
    twice = told(("attempt", "m0.0.0", "-", "a-0", 0, 1), ("attempt", "m0.0.1", "-", "a-0", 1, 1))
    assert list(twice.problems()) == ["a-0 was settled 2 times"]
    left = told(("attempt", "m0.0.0", "r1", "a-0", 0, 1), ("followed", "r1", "d1", "", 0, 1))
    assert list(left.problems()) == ["a-0 was never settled"]


def test_after_a_code_that_ends_it_at_once_nothing_is_to_be_tried_again() -> None:
    again = told(("attempt", "m0.0.0", "r1", "a-0", 0, 1), failure=str(UNFIT))
    (left, insisted) = again.problems()
    assert left == "a-0 was never settled"
    assert insisted == f"a-0 was retried after {UNFIT}"
    assert again.dead_at_once == 0
    for kind in ("parked", "dead"):
        dead = told((kind, "m0.0.0", "d1", "a-0", 0, 1), failure=str(UNFIT))
        assert list(dead.problems()) == ["a-0 was never settled"]
        assert dead.dead_at_once == 1


def test_what_is_taken_twice_needs_a_death_before_it_was_settled() -> None:
    requests, records = (
        seen(("a-0", 200), ("a-0", 200)),
        told(("attempt", "m0.0.0", "-", "a-0", 0, 4)),
    )
    assert list(double_problems(requests, records, {3})) == []
    for deaths in (set[int](), {4}, {5}):
        assert len(list(double_problems(requests, records, deaths))) == 1
