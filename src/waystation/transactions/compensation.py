"""Compensation: what a pipeline has for the case that one of its steps fails.

The frame of that pipeline, and all above it, are over. Its `on_failure` pipeline is called in their
place, and is told what has happened; then that of the next frame below that has one, and so on,
each once. However these end, the transaction then ends as the step did. Nothing here waits, or
reaches the store: where it stands is in the state, so a death in between changes nothing.

A step of a compensation that fails ends that compensation, and is named in the note of the end.
A compensation has none of its own: nobody could write it.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from waystation.transactions.pipeline import Pipeline
from waystation.transactions.record import Failing, Frame
from waystation.transactions.run import Ending, Run
from waystation.transactions.states import Status

#: Behind the place of the step that failed in that pipeline: places, and the keys that are made
#: from them, are then no child's.
MARK = "~"
_encode = msgspec.json.Encoder().encode


def names_of(run: Run) -> set[str]:
    """The pipelines that may have to compensate."""
    return {each.on_failure for each in run.definitions if each.on_failure}


def is_over(run: Run) -> bool:
    """Whether the frame on top is a compensation's own: when it ends, so does the compensation."""
    failing = run.state.failing
    return failing is not None and len(run.state.frames) == failing.at + 2


def is_called_again(run: Run) -> bool:
    """Whether a call of a compensation was decided on, and not made: its pipeline has changed."""
    failing = run.state.failing
    return failing is not None and len(run.state.frames) == failing.at + 1


def compensate(run: Run, ending: Ending | None, undos: Mapping[str, Pipeline]) -> Ending | None:
    """Puts the next compensation on top, to be passed on to; or the end, if there is none left.

    `ending` is how a step has failed; None: the compensation on top has done its work. `undos` are
    those of `names_of` that are there.
    """
    failing, below = _failing(run, ending)
    for at in range(below - 1, -1, -1):
        name = run.definitions[at].on_failure
        if not name:
            continue
        if name not in undos:
            _add(failing, f"Compensation {name} is not there.")
            continue
        failing.at = at
        del run.state.frames[at + 1 :], run.definitions[at + 1 :]
        _push(run, failing, undos[name])
        return None
    run.state.failing = None
    return Ending(Status(failing.status), failing.output, failing.note)


def shorten(run: Run) -> None:
    """Tells the compensation on top less: its transaction has grown too large."""
    failing, frame = run.state.failing, run.frame
    assert failing is not None
    frame.input = _told(failing, b"null", b"null")


def forget_output(run: Run, ending: Ending) -> None:
    """Lets the transaction end with `ending`, in the place of an output that is not kept."""
    failing = run.state.failing
    assert failing is not None
    failing.status, failing.output = ending.status.value, ending.output
    failing.note = ending.note


def _failing(run: Run, ending: Ending | None) -> tuple[Failing, int]:
    """What the transaction will end with, and how many frames may have a compensation yet."""
    state, failing = run.state, run.state.failing
    if failing is None:
        assert ending is not None, "without a failure there is nothing to compensate"
        failing = Failing(ending.status.value, ending.output, ending.note, run.frame.place, 0)
        state.failing = failing
        return failing, len(run.definitions)
    if is_called_again(run):
        return failing, failing.at + 1
    if ending is not None:
        name = state.frames[failing.at + 1].pipeline
        _add(failing, f"Compensation {name} ended as {ending.status.value}: {ending.note}")
    return failing, failing.at


def _push(run: Run, failing: Failing, undo: Pipeline) -> None:
    frame = run.frame
    told = _told(failing, failing.output, frame.input)
    parent = frame.place + MARK
    run.state.frames.append(Frame(undo.name, undo.version, undo.group, 0, told, 0, parent))
    run.definitions.append(undo)


def _told(failing: Failing, output: bytes, given: bytes) -> bytes:
    return _encode(
        {
            "status": failing.status,
            "output": msgspec.Raw(output or b"null"),
            "note": failing.note,
            "place": failing.place,
            "input": msgspec.Raw(given or b"null"),
        }
    )


def _add(failing: Failing, sentence: str) -> None:
    failing.note = f"{failing.note} {sentence}".strip()
