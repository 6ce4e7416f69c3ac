"""Ranges of offsets: each entry in one task, few tasks, and a share for each partition."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from waystation.history.offsets import OffsetRange, limit_batch, pack_ranges, parse_key

spans = st.lists(
    st.builds(
        lambda number, start, rows: OffsetRange(f"log-{number}", 0, start, start + rows),
        st.integers(0, 5),
        st.integers(0, 1000),
        st.integers(0, 500),
    ),
    max_size=20,
    unique_by=lambda span: span.log,
)


def offsets(parts: list[OffsetRange]) -> list[tuple[str, int]]:
    return [(part.log, offset) for part in parts for offset in range(part.start, part.end)]


@given(spans=spans, rows=st.integers(1, 200), most=st.integers(1, 10))
def test_every_row_is_in_one_task_in_order_and_tasks_are_few(
    spans: list[OffsetRange], rows: int, most: int
) -> None:
    tasks = pack_ranges(spans, rows=rows, tasks_max=most)

    assert offsets([part for task in tasks for part in task]) == offsets(spans)
    assert len(tasks) <= most
    total = sum(span.rows for span in spans)
    # As many as are needed, and all but the last are full
    assert len(tasks) == -(-total // max(rows, -(-total // most))) if total else not tasks
    sizes = [sum(part.rows for part in task) for task in tasks]
    assert len(set(sizes[:-1])) <= 1


def test_small_logs_share_a_task_and_a_large_one_is_split() -> None:
    small = [OffsetRange(f"small-{number}", 0, 0, 10) for number in range(100)]
    assert [len(task) for task in pack_ranges(small, rows=65_536, tasks_max=8)] == [100]

    large = pack_ranges([OffsetRange("large", 3, 5, 200_005)], rows=65_536, tasks_max=8)
    assert [task[0].rows for task in large] == [65_536, 65_536, 65_536, 3_392]


@given(
    waiting=st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 100), min_size=1),
    rows_max=st.integers(1, 300),
)
def test_a_limited_batch_takes_what_is_allowed_and_starves_nobody(
    waiting: dict[str, int], rows_max: int
) -> None:
    start = dict.fromkeys(waiting, 7)
    ends = {key: 7 + rows for key, rows in waiting.items()}

    reached = limit_batch(start, ends, rows_max)

    taken = {key: reached[key] - 7 for key in waiting}
    assert sum(taken.values()) == min(rows_max, sum(waiting.values()))
    assert all(0 <= taken[key] <= waiting[key] for key in waiting)
    # A partition with a smaller share than another has no more entries, except for rounding
    hungry = [taken[key] for key, rows in waiting.items() if taken[key] < rows]
    assert not hungry or min(hungry) >= max(taken.values()) - 1


def test_a_batch_without_a_limit_goes_to_all_ends_and_keeps_what_is_gone() -> None:
    assert limit_batch({"gone": 5, "old": 1}, {"old": 9, "new": 3}, None) == {
        "gone": 5,
        "old": 9,
        "new": 3,
    }


def test_a_partition_has_one_name_in_offsets() -> None:
    span = OffsetRange("t.default.orders.0", 12, 0, 1)
    assert parse_key(span.key) == ("t.default.orders.0", 12)
