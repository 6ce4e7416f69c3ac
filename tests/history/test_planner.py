"""Plan of a micro-batch: its ranges, its gaps, and the rest for the next one."""

from __future__ import annotations

from typing import Any

import pytest

from tests.history.log_writer import LogWriter
from waystation.history.ingest.planner import (
    BatchPlan,
    IngestOptions,
    plan_batch,
    recording_policies,
)
from waystation.history.lake.table import TableOffset
from waystation.history.log_reader import LogReader
from waystation.history.offsets import Gap, OffsetRange
from waystation.logs.protocol import LogState
from waystation.messages.redaction import FULL, RedactionPolicy
from waystation.topics.keys import definition_key

NONE = RedactionPolicy(record="none")


def state(first: int, end: int) -> LogState:
    return LogState(first=first, end=end, bytes=0, last_ms=0, sealed=None, sealed_ms=0, dropped=0)


def plan(
    committed: dict[str, int], states: dict[str, LogState], ends: dict[str, int], **more: Any
) -> BatchPlan:
    policies = {"a": FULL, "b": more.pop("policy", FULL)}
    offsets = {key: TableOffset(offset) for key, offset in committed.items()}
    return plan_batch(offsets, states, ends, policies, IngestOptions(**more))


def test_partitions_are_read_from_their_committed_offsets_to_the_ends_of_the_run() -> None:
    planned = plan({"a/0": 5, "b/0": 0}, {"a/0": state(0, 30), "b/0": state(0, 2)},
                   {"a/0": 20, "b/0": 2}, task_rows=10)  # fmt: skip
    assert planned.tasks == [
        [OffsetRange("a", 0, 5, 15)],
        [OffsetRange("a", 0, 15, 20), OffsetRange("b", 0, 0, 2)],
    ]
    assert (planned.entries, planned.left) == (17, 0)


def test_trimmed_and_withheld_entries_are_gaps_of_the_first_task() -> None:
    planned = plan({"a/0": 5, "b/0": 3}, {"a/0": state(8, 10), "b/0": state(4, 9)},
                   {"a/0": 10, "b/0": 9}, policy=NONE)  # fmt: skip
    assert planned.tasks == [
        [
            Gap("a", 0, 5, 8),
            Gap("b", 0, 3, 4),
            Gap("b", 0, 4, 9, cause="policy"),
            OffsetRange("a", 0, 8, 10),
        ]
    ]
    assert planned.entries == 11
    # Without a range there is a task for the gaps, too
    gone = plan({"a/0": 0}, {"a/0": state(9, 9)}, {"a/0": 9})
    assert gone.tasks == [[Gap("a", 0, 0, 9)]]
    # And entries that came after the ends of the run are not its business
    later = plan({"a/0": 0}, {"a/0": state(9, 12)}, {"a/0": 4})
    assert later.tasks == [[Gap("a", 0, 0, 4)]]


def test_a_micro_batch_leaves_what_exceeds_its_limit() -> None:
    planned = plan({"a/0": 0, "b/0": 0}, {"a/0": state(0, 30), "b/0": state(0, 4)},
                   {"a/0": 30, "b/0": 4}, batch_rows=10)  # fmt: skip
    assert planned.tasks == [[OffsetRange("a", 0, 0, 6), OffsetRange("b", 0, 0, 4)]]
    assert (planned.entries, planned.left) == (10, 24)


def test_nothing_is_planned_behind_the_ends_of_the_run() -> None:
    # Another ingest has committed more, and a store that went back has less
    for end in (3, 7):
        planned = plan({"a/0": 5}, {"a/0": state(0, end)}, {"a/0": 4})
        assert (planned.tasks, planned.left) == ([], 0)


@pytest.mark.parametrize("body", [b"[]", b"\xff", b'{"x":' + b"[" * 5000])
def test_recording_policies_with_an_unknown_definition_leave_out_its_log(
    writer: LogWriter, store_url: str, body: bytes
) -> None:
    writer.command("HSET", definition_key("default", "orders"), "body", body)
    with LogReader(store_url) as reader:
        policies = recording_policies(reader, ["t.default.orders.0", "t.default.other.0", "tx"])
    assert policies == {"t.default.other.0": FULL, "tx": FULL}
