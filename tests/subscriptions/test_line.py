"""The line: one of a group on its way, groups in turn, and order whatever comes of messages."""

from __future__ import annotations

from collections import defaultdict

from hypothesis import given, settings
from hypothesis import strategies as st

from waystation.envelope import Envelope
from waystation.subscriptions.line import Line
from waystation.subscriptions.states import GroupState
from waystation.subscriptions.window import Waiting, Window

CLEAN, RETRYING, PARKED = GroupState.CLEAN, GroupState.RETRYING, GroupState.PARKED
WINDOW = Window(0, 0, 0)


def waiting(offset: int, group: str) -> Waiting:
    message = Envelope(id=str(offset), project="default", data=b"", group=group)
    return Waiting(WINDOW, offset, group, message, 1)


def line_of(*groups: str, unclean: str = "") -> Line:
    line = Line()
    for offset, group in enumerate(groups):
        line.add(waiting(offset, group), unclean=bool(group) and group in unclean)
    return line


def taken(line: Line) -> list[int]:
    found = []
    while (each := line.take()) is not None:
        found.append(each.offset)
    return found


def test_groups_take_turns_and_one_of_each_is_on_its_way() -> None:
    line = line_of("a", "a", "b", "a", "b")
    assert taken(line) == [0, 2]
    line.ended("a", CLEAN)
    line.ended("b", CLEAN)
    assert taken(line) == [1, 4]


def test_without_a_group_all_go_at_once() -> None:
    line = line_of("", "", "")
    assert taken(line) == [0, 1, 2]
    line.ended("", CLEAN)


def test_a_group_that_is_not_clean_gets_no_request() -> None:
    line = line_of("a", "b", "a", unclean="a")
    assert taken(line) == [1]
    assert [each.offset for each in line.behind(10)] == [0, 2]
    line.ended("a", PARKED)
    line.ended("a", PARKED)
    assert not line.is_known("a")


def test_what_waits_goes_behind_once_the_one_before_it_has_failed() -> None:
    line = line_of("a", "a", "a")
    assert taken(line) == [0]
    assert line.behind(10) == []
    line.ended("a", RETRYING)
    assert taken(line) == []
    assert [each.offset for each in line.behind(1)] == [1]
    assert line.behind(10) == [], "what is pushed must have ended first"
    line.ended("a", RETRYING)
    assert [each.offset for each in line.behind(10)] == [2]


def test_a_group_is_sent_again_when_its_heads_have_ended() -> None:
    line = line_of("a", unclean="a")
    line.head_begins("a")
    line.head_ended("a", CLEAN)
    assert taken(line) == [0]


def test_a_group_whose_head_is_on_its_way_gets_no_request() -> None:
    """Even if the store calls it clean: its head was skipped while a request was under way."""
    line = Line()
    line.head_begins("a")
    line.add(waiting(0, "a"), unclean=False)
    assert taken(line) == []
    assert [each.offset for each in line.behind(10)] == [0]


def test_one_that_was_not_attempted_is_the_next_of_its_group() -> None:
    line = line_of("a", "a", "")
    first = line.take()
    assert first is not None
    line.put_back(first)
    assert taken(line)[0] == 0
    alone = line_of("", "")
    first = alone.take()
    assert first is not None
    alone.put_back(first)
    assert taken(alone) == [0, 1]


def test_what_a_batch_tells_of_groups_may_be_older_than_what_was_committed() -> None:
    """The group leaves the window unclean while the batch is read: that is not forgotten."""
    line = line_of("a")
    assert taken(line) == [0]
    line.begin_read()
    line.ended("a", RETRYING)
    assert not line.is_known("a")
    line.add(waiting(1, "a"), unclean=False)
    line.end_read()
    assert taken(line) == []
    assert [each.offset for each in line.behind(10)] == [1]
    line.ended("a", CLEAN)
    line.add(waiting(2, "a"), unclean=False)
    assert taken(line) == [2], "what was learnt then is forgotten with its batch"


def test_one_that_has_vanished_leaves_its_group_as_it_was() -> None:
    line = line_of("a", "a")
    first = line.take()
    assert first is not None
    line.vanished(first)
    assert taken(line) == [1]


def test_nothing_is_kept_of_groups_that_have_gone() -> None:
    line = line_of("a", "b")
    taken(line)
    line.ended("a", CLEAN)
    line.ended("b", PARKED)
    assert not line._groups
    assert not line._left


class Store:
    """The store as the line sees it: what of each group waits there, and what is settled."""

    def __init__(self) -> None:
        self.behind: dict[str, list[int]] = defaultdict(list)
        self.settled: dict[str, list[int]] = defaultdict(list)
        self.attempted: list[tuple[str, int]] = []

    def state(self, group: str) -> GroupState:
        return RETRYING if self.behind[group] else CLEAN


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["read", "take", "done", "fail", "release", "push", "pushed", "head"]),
        st.integers(0, 2),
    ),
    max_size=120,
)


@settings(max_examples=300, deadline=None)
@given(STEPS)
def test_any_endings_keep_the_order_of_every_group(steps: list[tuple[str, int]]) -> None:
    """Requests and pushes end in any order, batches tell what was so when they were asked."""
    line, store, offset = Line(), Store(), 0
    on_way: dict[str, Waiting] = {}
    pushed: list[Waiting] = []
    reads: list[tuple[str, bool]] = []
    for step, which in [*steps, *[("drain", 0)] * 60]:
        group = f"g{which}"
        if step == "read":
            if not reads:
                line.begin_read()
            reads.append((group, store.state(group) is not CLEAN))
            if len(reads) == 3:
                for name, unclean in reads:
                    line.add(waiting(offset, name), unclean=unclean)
                    offset += 1
                line.end_read()
                reads = []
        if step in ("take", "drain") and (each := line.take()) is not None:
            assert each.group not in on_way, "one of a group at a time"
            assert not store.behind[each.group], "what is in the store comes first"
            on_way[each.group] = each
            store.attempted.append((each.group, each.offset))
        if step == "release" and group in on_way:
            line.put_back(on_way.pop(group))
        if step in ("done", "fail") and group in on_way:
            each = on_way.pop(group)
            (store.settled if step == "done" else store.behind)[group].append(each.offset)
            line.ended(group, store.state(group))
        if step in ("push", "drain"):
            pushed += line.behind(2)
        if step in ("pushed", "drain"):
            for each in pushed:
                assert each.group not in on_way
                store.behind[each.group].append(each.offset)
                line.ended(each.group, store.state(each.group))
            pushed = []
        if step == "drain" and on_way:
            name, each = on_way.popitem()
            store.settled[name].append(each.offset)
            line.ended(name, store.state(name))
        names = [group] if step == "head" else list(store.behind) if step == "drain" else []
        for name in names:
            if store.behind[name] and name not in on_way:
                line.head_begins(name)
                store.settled[name].append(store.behind[name].pop(0))
                line.head_ended(name, store.state(name))
    for name, settled in store.settled.items():
        assert settled == sorted(settled), f"{name} was settled out of order"
    assert sum(map(len, store.settled.values())) == offset
    assert not line._groups
