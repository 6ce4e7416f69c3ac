"""A Parallel under way: the children that are to be created, and what came of them.

Its list is committed with the counter, before the first child. So whoever holds the parent goes on
where the one before has stopped, and never calls the step again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from waystation.messages.redaction import RedactionPolicy
from waystation.transactions import names
from waystation.transactions.cells import BATCH_MAX
from waystation.transactions.entry import NewTransaction
from waystation.transactions.kids import Kids
from waystation.transactions.log_entry import StartedDetail
from waystation.transactions.outcomes import Success
from waystation.transactions.record import Fan, Frame, TransactionState, encode
from waystation.transactions.run import Ended, Ending, Run
from waystation.transactions.states import Status

#: Inputs of one call that creates children.
_CHUNK_BYTES_MAX = 1_048_576
_pack = msgspec.msgpack.Encoder().encode
_encode = msgspec.json.Encoder().encode


#: What history keeps, by pipeline and version.
Recordings = Mapping[tuple[str, str], RedactionPolicy]


def chunk(
    run: Run, fan: Fan, created: int, now_ms: int, recordings: Recordings
) -> list[NewTransaction]:
    """The next children to create, of the size of one call."""
    items: list[NewTransaction] = []
    size = 0
    for n in range(created + 1, min(created + BATCH_MAX, len(fan.children)) + 1):
        size += len(fan.children[n - 1].input)
        if items and size > _CHUNK_BYTES_MAX:
            break
        items.append(_child(run, fan, n, now_ms, recordings))
    return items


def _child(run: Run, fan: Fan, n: int, now_ms: int, recordings: Recordings) -> NewTransaction:
    child = fan.children[n - 1]
    state = TransactionState(
        type=child.pipeline,
        data=child.input,
        started_ms=now_ms,
        cause=run.id,
        traceparent=run.state.traceparent,
        frames=[Frame(child.pipeline, child.version, child.group, 0, child.input)],
        depth=run.state.depth + len(run.state.frames),
    )
    detail = StartedDetail(
        type=child.pipeline,
        version=child.version,
        external_id="",
        metadata=state.metadata,
        data=child.input,
        cause=run.id,
        traceparent=state.traceparent,
        parent=f"{run.id} {fan.round} {n}",
        project=run.owner,
    )
    return NewTransaction(
        id=names.child_id(run.id, fan.round, n),
        owner=run.owner,
        pipeline=child.pipeline,
        version=child.version,
        group=child.group,
        state=encode(state),
        detail=_pack(detail.kept(recordings[child.pipeline, child.version])),
        inside=True,
    )


def ended_fan(run: Run, kids: Kids, *, state_bytes_max: int) -> Ended:
    """What the step ends with, now that all children have."""
    results = [run.extras.get(f"result:{n}".encode(), b"") for n in range(1, kids.total + 1)]
    drop = ("kids", "room", "tree", *(f"result:{n}" for n in range(1, kids.total + 1)))
    if kids.failed:
        return Ended(_failure(run, kids, results), drop)
    if not all(b" " in each for each in results):
        # A script leaves the output out where there is no room for it: a status, and no blank.
        note = f"The outputs of the children have more than {state_bytes_max} bytes."
        return Ended(Ending(Status.INTERNAL_ERROR, _encode({"error": note}), note), drop)
    outputs = (each.partition(b" ")[2] or b"null" for each in results)
    return Ended(Success(b"[" + b",".join(outputs) + b"]"), drop)


def _failure(run: Run, kids: Kids, results: Sequence[bytes]) -> Ending:
    word, _, output = results[kids.failed - 1].partition(b" ")
    status = Status(word.decode())
    child = names.child_id(run.id, kids.round, kids.failed)
    note = f"Child {kids.failed} of {kids.total} ended as {status.value}."
    told = {
        "error": note,
        "child": kids.failed,
        "transactionId": child,
        "output": msgspec.Raw(output or b"null"),
    }
    # That a child was cancelled does not mean that somebody has cancelled its parent.
    ended_as = Status.FAILED if status is Status.CANCELLED else status
    return Ending(ended_as, _encode(told), note)
