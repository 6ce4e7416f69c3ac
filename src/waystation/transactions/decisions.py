"""What comes of a step: the move of its transaction. Nothing here waits, or reaches the store.

A success leads to the next step, in this pipeline or in the one that called it, or to the end. A
failure is the end, whatever called the pipeline: its status bubbles up unchanged, once that what
pipelines have for this case has run (`compensation.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import msgspec

from waystation.messages.redaction import strictest_policy
from waystation.transactions import compensation
from waystation.transactions.journal import NOTE_BYTES_MAX, cut
from waystation.transactions.log_entry import StepDetail
from waystation.transactions.outcomes import Call, Calls, Failure, Outcome, Pause, Success
from waystation.transactions.pipeline import Pipeline
from waystation.transactions.progress import (
    Commit,
    FanOpen,
    FanWait,
    Finish,
    Move,
    PassOn,
    Sleep,
    next_round,
)
from waystation.transactions.record import Fan, FanChild, Frame, encode
from waystation.transactions.run import Ended, Ending, Run
from waystation.transactions.state_size import StateTooLargeError, packed
from waystation.transactions.states import Status

#: Default of `transactions.depth_max`.
FRAMES_MAX = 32
#: Default of `transactions.descendants_max`.
DESCENDANTS_MAX = 100_000
#: What a packed state may have while it lists the children of a Parallel.
FAN_BYTES_MAX = 8 * 1_048_576
_NO_UNDOS: Mapping[str, Pipeline] = MappingProxyType({})
_pack = msgspec.msgpack.Encoder().encode
_encode = msgspec.json.Encoder().encode


def decide(
    run: Run,
    ended: Ended,
    called: Sequence[Pipeline] = (),
    undos: Mapping[str, Pipeline] = _NO_UNDOS,
    *,
    state_bytes_max: int,
    depth_max: int = FRAMES_MAX,
    descendants_max: int = DESCENDANTS_MAX,
) -> Move | None:
    """The move; None: the run goes on without one. `called` are the pipelines of Call or Calls."""
    kept = _kept(run) if undos or run.state.failing else None
    try:
        if compensation.is_called_again(run):
            return _fail(run, None, ended.drop, undos, state_bytes_max)
        match ended.outcome:
            case Failure(status=status, output=output, note=note):
                failed = Ending(Status(status), output, note)
                return _fail(run, failed, ended.drop, undos, state_bytes_max)
            case Ending() as failed:
                return _fail(run, failed, ended.drop, undos, state_bytes_max)
            case _ if _is_too_deep(run, ended.outcome, depth_max):
                return _fail(run, _too_deep(depth_max), ended.drop, undos, state_bytes_max)
            case Calls() as calls:
                return _fan(run, ended, calls, called, state_bytes_max, descendants_max)
            case _:
                return _decide(run, ended, called, undos, state_bytes_max)
    except StateTooLargeError as error:
        # What was kept before did fit. What has grown since is left out.
        run.state.fan = None
        if kept is not None:
            run.state.frames, run.definitions = kept
        else:
            run.frame.input = b"null"
        return _fail(run, _too_large(error, state_bytes_max), ended.drop, undos, state_bytes_max)


def _kept(run: Run) -> tuple[list[Frame], list[Pipeline]]:
    """The frames as they are, to come back to: what compensates goes by them."""
    return list(map(msgspec.structs.replace, run.state.frames)), list(run.definitions)


def _decide(
    run: Run,
    ended: Ended,
    called: Sequence[Pipeline],
    undos: Mapping[str, Pipeline],
    state_bytes_max: int,
) -> Move | None:
    outcome = ended.outcome
    match outcome:
        case Success():
            return _succeed(run, ended, outcome, undos, state_bytes_max)
        case Pause():
            return _pause(run, ended, outcome, state_bytes_max)
        case Call(input=given):
            return _call(run, ended, given, called[0], state_bytes_max)
        case _:
            raise AssertionError("decide handles failures and Parallels itself")


def _fail(
    run: Run,
    failed: Ending | None,
    drop: tuple[str, ...],
    undos: Mapping[str, Pipeline],
    state_bytes_max: int,
) -> PassOn | Finish:
    """To what compensates next, or to the end. None: what compensated has done its work."""
    last = compensation.compensate(run, failed, undos)
    if last is not None:
        try:
            return end(run, last, drop, state_bytes_max=state_bytes_max)
        except StateTooLargeError as error:
            run.frame.input = b"null"
            last = _too_large(error, state_bytes_max)
            return end(run, last, drop, state_bytes_max=FAN_BYTES_MAX)
    run.state.note = failed.note if failed is not None else run.state.note
    try:
        return _enter(run, drop, state_bytes_max)
    except StateTooLargeError:
        compensation.shorten(run)
    try:
        return _enter(run, drop, state_bytes_max)
    except StateTooLargeError as error:
        compensation.forget_output(run, _too_large(error, state_bytes_max))
        return _enter(run, drop, FAN_BYTES_MAX)


def end(run: Run, ending: Ending, drop: tuple[str, ...], *, state_bytes_max: int) -> Finish:
    """The end of the transaction."""
    state = run.state
    state.output, state.note = ending.output, ending.note
    return Finish(
        held=run.held,
        state=packed(state, state_bytes_max),
        detail=detail(
            run,
            output=ending.output,
            cause="" if ending.status is Status.SUCCESS else ending.note,
        ),
        drop=drop,
        status=ending.status,
        # Only a parent asks for it; clients read the state.
        output=ending.output if run.child else b"",
    )


# What is written by these is not larger than what was: it is never refused for its size.


def boundary(run: Run) -> Commit:
    """A commit of nothing but what is known: where a cancel takes effect."""
    return Commit(held=run.held, state=encode(run.state), detail=detail(run))


def fan_wait(run: Run) -> FanWait:
    """All children are there; their list is not needed any more."""
    assert run.state.fan is not None
    run.state.fan.children = []
    return FanWait(held=run.held, state=encode(run.state), detail=detail(run))


def put_off(run: Run, note: str, *, delay_ms: int) -> Sleep:
    """A while later, perhaps elsewhere: nothing was tried here."""
    run.state.note = note
    move = _sleep(run, Pause(delay_ms=delay_ms), "", encode(run.state))
    return msgspec.structs.replace(move, untried=True)


# -- By outcome ------------------------------------------------------------------------------


def _succeed(
    run: Run,
    ended: Ended,
    outcome: Success,
    undos: Mapping[str, Pipeline],
    state_bytes_max: int,
) -> Move | None:
    frames, snapshot, returned = run.state.frames, outcome.snapshot, False
    while True:
        frame, pipeline = frames[-1], run.definitions[-1]
        frame.step, frame.retries, frame.waits = frame.step + 1, 0, ""
        frame.input = outcome.output
        if frame.step < len(pipeline.steps):
            break
        if compensation.is_over(run):
            return _fail(run, None, ended.drop, undos, state_bytes_max)
        if len(frames) == 1:
            frame.input = b"null"
            success = Ending(Status.SUCCESS, outcome.output, outcome.note)
            return end(run, success, ended.drop, state_bytes_max=state_bytes_max)
        frames.pop()
        run.definitions.pop()
        returned, snapshot = True, snapshot or pipeline.snapshot
    if ended.pure and not returned:
        return None
    state, told = packed(run.state, state_bytes_max), detail(run)
    if not returned:
        return Commit(held=run.held, state=state, detail=told, drop=ended.drop, snapshot=snapshot)
    return PassOn(
        held=run.held,
        state=state,
        detail=told,
        drop=ended.drop,
        group=frame.group,
        queue="out",
        pipeline=frame.pipeline,
        snapshot=snapshot,
    )


def _pause(run: Run, ended: Ended, outcome: Pause, state_bytes_max: int) -> Sleep:
    frame = run.frame
    if outcome.switch:
        if outcome.switch == frame.waits and run.timed_out:
            # It was told that the time is over, and waits on: it must not spin.
            outcome = msgspec.structs.replace(outcome, at_most_ms=None)
        frame.waits = outcome.switch
    frame.retries += 1
    run.state.note = outcome.note
    return _sleep(run, outcome, ended.seen, packed(run.state, state_bytes_max))


def _sleep(run: Run, pause: Pause, seen: str, state: bytes) -> Sleep:
    return Sleep(
        held=run.held,
        state=state,
        detail=detail(run, delay_ms=pause.delay_ms, switch=pause.switch, state=state),
        delay_ms=pause.delay_ms,
        switch=pause.switch,
        at_most_ms=pause.at_most_ms,
        place=run.frame.place,
        acknowledged=seen,
    )


def _call(run: Run, ended: Ended, given: bytes, child: Pipeline, state_bytes_max: int) -> Move:
    frames, parent = run.state.frames, run.frame.place
    frames.append(Frame(child.name, child.version, child.group, 0, given, 0, parent))
    run.definitions.append(child)
    return _enter(run, ended.drop, state_bytes_max)


def _enter(run: Run, drop: tuple[str, ...], state_bytes_max: int) -> PassOn:
    """To the node group of the pipeline that was just put on top."""
    frame = run.frame
    return PassOn(
        held=run.held,
        state=packed(run.state, state_bytes_max),
        detail=detail(run),
        drop=drop,
        group=frame.group,
        queue="in",
        pipeline=frame.pipeline,
        version=frame.version,
    )


def _is_too_deep(run: Run, outcome: Outcome | Ending, depth_max: int) -> bool:
    deep = run.state.depth + len(run.state.frames) >= depth_max
    return deep and isinstance(outcome, Call | Calls)


def _too_large(error: StateTooLargeError, state_bytes_max: int) -> Ending:
    note = f"{error} A transaction may have {state_bytes_max} bytes."
    return Ending(Status.INTERNAL_ERROR, _encode({"error": note}), note)


def _too_deep(depth_max: int) -> Ending:
    note = (
        f"More than {depth_max} pipelines call each other. The setting transactions.depth_max"
        " limits the depth."
    )
    told = {"error": note, "code": "transaction.tree-too-deep", "limit": depth_max}
    return Ending(Status.INTERNAL_ERROR, _encode(told), note)


def too_many_descendants(descendants_max: int) -> Ending:
    """Return the end of a step whose Parallel would make its tree too large."""
    note = (
        f"The tree of this transaction would have more than {descendants_max} descendants. The"
        " setting transactions.descendants_max limits their number."
    )
    told = {"error": note, "code": "transaction.tree-too-large", "limit": descendants_max}
    return Ending(Status.INTERNAL_ERROR, _encode(told), note)


def _fan(
    run: Run,
    ended: Ended,
    calls: Calls,
    called: Sequence[Pipeline],
    state_bytes_max: int,
    descendants_max: int,
) -> Move:
    largest = max(len(call.input) for call in calls.children)
    if 2 * largest > state_bytes_max:
        # A child has it twice: as its data, and as the input of its first step.
        raise StateTooLargeError(f"The input of a child has {largest} bytes.")
    children = [
        FanChild(pipeline.name, pipeline.version, pipeline.group, call.input)
        for call, pipeline in zip(calls.children, called, strict=True)
    ]
    round_ = next_round(run.held)
    run.state.fan = Fan(round_, calls.policy, children)
    return FanOpen(
        held=run.held,
        state=packed(run.state, FAN_BYTES_MAX),
        detail=detail(run),
        drop=ended.drop,
        round=round_,
        total=len(children),
        policy=calls.policy,
        # What they give becomes a state of ours: more than that is not even gathered.
        room=state_bytes_max,
        descendants_max=descendants_max,
    )


def detail(
    run: Run,
    *,
    output: bytes | None = None,
    delay_ms: int | None = None,
    switch: str = "",
    state: bytes | None = None,
    cause: str = "",
) -> bytes:
    """For the record log: what was tried since the last record."""
    told = StepDetail(
        attempts=run.attempts,
        output=output,
        delay_ms=delay_ms,
        switch=switch,
        state=state,
        cause=cut(cause, NOTE_BYTES_MAX),
    )
    return _pack(told.kept(strictest_policy(each.recording for each in run.definitions)))
