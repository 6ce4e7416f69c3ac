"""The line: one of a group on its way, groups in turn, and order whatever comes of messages."""

from __future__ import annotations

import random
from collections import defaultdict, deque
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from waystation.messages.envelope import Envelope
from waystation.subscriptions.heads import Heads
from waystation.subscriptions.held import Head
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


class ShardSlot:
    """Model of a shard's slot: retries of each group in order, and those that the owner took."""

    def __init__(self) -> None:
        self.queue: dict[str, list[tuple[int, int]]] = defaultdict(list)
        self.tries: dict[int, int] = defaultdict(int)
        self.taken: set[int] = set()
        self.numbers = 0

    def state(self, group: str) -> GroupState:
        return RETRYING if self.queue[group] else CLEAN

    def take(self, group: str) -> Head | None:
        """Take the head of a group. Return None if it is taken or if there is none."""
        if not self.queue[group] or self.queue[group][0][0] in self.taken:
            return None
        number, offset = self.queue[group][0]
        self.taken.add(number)
        return Head(f"r{number}.{self.tries[number]}", group, str(offset).encode())

    def commit(self, each: Waiting | Head, verdict: str) -> tuple[GroupState, Head | None]:
        """Apply a verdict as `commit.lua` does. Return the group state and the next retry."""
        following = None
        if isinstance(each, Head):
            number = int(each.member[1:].partition(".")[0])
            self.taken.discard(number)
            if self.queue[each.group][:1] == [(number, offset_of(each))]:
                self.tries[number] += 1
                if verdict == "done":
                    self.queue[each.group].pop(0)
                    following = self.take(each.group)
        elif verdict != "done":
            self.numbers += 1
            self.queue[each.group].append((self.numbers, each.offset))
        return self.state(each.group), following

    def skip(self, group: str) -> None:
        if self.queue[group]:
            self.taken.discard(self.queue[group].pop(0)[0])

    def purge(self, group: str) -> None:
        while self.queue[group]:
            self.skip(group)


def offset_of(each: Waiting | Head) -> int:
    return int(each.record) if isinstance(each, Head) else each.offset


class ShardOwner:
    """Model of a shard's owner around a real `Line` and real `Heads`. Each reply may be late."""

    def __init__(self) -> None:
        self.line, self.slot = Line(), ShardSlot()
        nothing: Any = None
        self.heads = Heads(nothing, nothing, self.line, clock=nothing)
        self.offset = 0
        self.read: list[tuple[str, bool]] | None = None
        #: Deliveries whose commit has not come back, and those of them whose request has not ended.
        self.started: dict[str, Waiting | Head] = {}
        self.flying: dict[str, Waiting | Head] = {}
        self.pending: list[tuple[Waiting | Head, str]] = []
        #: Replies come in the order in which the store sent them: a shard has one connection.
        self.replies: deque[tuple[str, Any]] = deque()
        self.last: dict[str, int] = defaultdict(lambda: -1)

    def step(self, what: str, group: str) -> None:
        match what:
            case "read" if self.read is None:
                self.line.begin_read()
                self.read = []
            case "ask" if self.read is not None:
                is_known = self.line.is_known(group)
                unclean = not is_known and self.slot.state(group) is not CLEAN
                self.replies.append(("ask", (group, unclean)))
            case "end" if self.read is not None and not self.expects("ask"):
                for name, unclean in self.read:
                    self.line.add(waiting(self.offset, name), unclean=unclean)
                    self.offset += 1
                self.line.end_read()
                self.read = None
            case "take" if (message := self.line.take()) is not None:
                assert not self.slot.queue[message.group], "retries of the group come first"
                self.start(message)
            case "head" if self.heads.ready:
                self.start(self.heads.pop())
            case "done" | "fail" if group in self.flying:
                self.pending.append((self.flying.pop(group), what))
            case "release" if isinstance(each := self.flying.get(group), Waiting):
                self.line.put_back(each)
                self.last[group] -= 1
                del self.flying[group], self.started[group]
            case "behind":
                self.pending += [(each, "behind") for each in self.line.behind(3)]
            case "commit" if self.pending and not self.expects("commit"):
                results = [(each, how, *self.slot.commit(each, how)) for each, how in self.pending]
                self.replies.append(("commit", results))
                self.pending = []
            case "due" if not self.expects("due"):
                self.replies.append(("due", self.slot.take(group)))
            case "reply" if self.replies:
                self.hear(*self.replies.popleft())
            case "skip":
                self.slot.skip(group)
            case "purge":
                self.slot.purge(group)

    def start(self, each: Waiting | Head) -> None:
        group, offset = each.group, offset_of(each)
        assert group not in self.started, "the delivery before it has not been committed"
        assert offset >= self.last[group], "a later message of the group was attempted before"
        self.last[group] = offset
        self.started[group] = self.flying[group] = each

    def expects(self, kind: str) -> bool:
        return kind in [each for each, _ in self.replies]

    def hear(self, kind: str, reply: Any) -> None:
        if kind == "ask":
            assert self.read is not None
            self.read.append(reply)
        elif kind == "due" and reply is not None:
            self.heads.add(reply)
        elif kind == "commit":
            for each, how, state, following in reply:
                if how != "behind":
                    del self.started[each.group]
                if isinstance(each, Head):
                    self.heads.ended(each, state)
                else:
                    self.line.ended(each.group, state)
                if following is not None:
                    self.heads.add(following)

    @property
    def is_idle(self) -> bool:
        """True if all messages are settled, and neither line nor heads keep anything."""
        mine = (self.read, self.started, self.pending, self.replies, *self.slot.queue.values())
        kept = (self.line._groups, self.line._heads, self.heads._groups, self.heads.taken)
        return not any((*mine, *kept))


OWNED = ["g0", "g1"]
OWNER_STEPS = [
    *("read", "ask", "ask", "ask", "end"),
    *("take", "take", "head", "head", "done", "done", "fail", "release"),
    *("behind", "commit", "commit", "due", "reply", "reply", "reply", "reply", "skip", "purge"),
]
TO_THE_END = ("reply", "end", "head", "take", "done", "behind", "commit", "reply", "due", "reply")


def run_owner(steps: list[tuple[str, str]]) -> None:
    owner = ShardOwner()
    for what, group in steps:
        owner.step(what, group)
    for _ in range(2000):
        if owner.is_idle:
            return
        for group in OWNED:
            for what in TO_THE_END:
                owner.step(what, group)
    raise AssertionError("a message is stuck")


def test_heads_retry_skipped_then_next_purged_starts_no_message_beside_it() -> None:
    """The store reports `clean` for a retry in flight, and the next retry was taken before."""
    line = Line()
    nothing: Any = None
    heads = Heads(nothing, nothing, line, clock=nothing)
    first, second = Head("r1.1", "a", b"0"), Head("r2.0", "a", b"1")
    heads.add(first)
    assert heads.pop() is first
    heads.add(second)
    line.add(waiting(2, "a"), unclean=True)
    heads.ended(first, CLEAN)
    assert heads.pop() is second
    assert taken(line) == [], "a message never starts beside a retry of its group"
    assert [each.offset for each in line.behind(10)] == [2]


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(OWNER_STEPS), st.sampled_from(OWNED)), max_size=120))
def test_line_and_heads_random_steps_start_one_delivery_of_a_group(
    steps: list[tuple[str, str]],
) -> None:
    """Replies are late, look-ups are outdated, and operators skip and purge."""
    run_owner(steps)


def test_line_and_heads_long_runs_start_one_delivery_of_a_group() -> None:
    for seed in range(100):
        rng = random.Random(seed)
        groups = OWNED[: 1 + seed % 2]
        run_owner([(rng.choice(OWNER_STEPS), rng.choice(groups)) for _ in range(2000)])
