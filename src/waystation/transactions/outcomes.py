"""What a step may return, and what the machine makes of it.

    return refund                                    the output; it is the next step's input
    return None                                      the input goes on to the next step as it came
    return Fail("nobody answered")                   the transaction ends as failed
    return Abort("the account is closed")            ... as aborted
    return RetryLater("30s")                         the step is called again, from its top
    return Wait("approved", at_most="2d")            ... when the switch changes, or in two days
    return Child("ship-order")                       its output is the output of this step
    return Parallel([Child("a"), Child("b", {})])    a list of their outputs is

A step has exactly one outcome. The classes above are for users: they hold any value that JSON can
say, and complain where they are made. `Outcome` is what comes of them: bytes and milliseconds.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from waystation.errors import InvalidInputError, SwitchInvalidError
from waystation.runtime.durations import Duration, duration_ms
from waystation.runtime.ids import require_name
from waystation.runtime.json_values import encode_json

CHILDREN_MAX = 1000
NOTE_LENGTH_MAX = 500
#: What is done with the other children when one has failed.
Policy = Literal["cancel_rest", "wait_all"]
POLICIES: tuple[Policy, ...] = ("cancel_rest", "wait_all")
#: What a step can end a transaction as, beside success.
FailureStatus = Literal["failed", "aborted", "internal-error"]

_is_switch = re.compile(r"[0-9A-Za-z][0-9A-Za-z_.-]{0,31}").fullmatch
#: 64 doublings are more than anybody waits; and no power of it is too large for a float.
_GROWTHS_MAX = 64


def require_switch(name: str) -> str:
    """Returns the name of a switch, or raises an error that tells the rule."""
    if not isinstance(name, str) or _is_switch(name) is None:
        raise SwitchInvalidError(
            f"{str(name)[:80]!r} is not the name of a switch.",
            field="switch",
            hint="Use 1 to 32 letters, digits, '_', '.' and '-', beginning with a letter or digit.",
        )
    return name


# -- For users -------------------------------------------------------------------------------


class _Ending(msgspec.Struct, frozen=True):
    #: Why; it stands in the journal, and in the output unless there is another one.
    note: str = ""
    #: Anything that JSON can say.
    output: Any = UNSET

    def __post_init__(self) -> None:
        if not isinstance(self.note, str):
            raise InvalidInputError("A note is text.", field="note")

    def output_json(self) -> bytes:
        """What the client is told."""
        return encode_json(
            {"error": self.note} if self.output is UNSET else self.output, field="output"
        )


class Fail(_Ending, frozen=True):
    """The transaction cannot succeed; what was asked for is not possible."""


class Abort(_Ending, frozen=True):
    """The transaction must go no further; somebody has to look at it."""


class RetryLater(msgspec.Struct, frozen=True):
    """Calls the step again later, from its top, with the same input."""

    #: 5 minutes without one.
    delay: Duration | None = None
    note: str = ""
    #: Each further delay is this much longer, up to `delay_max`.
    factor: float = 1.0
    delay_max: Duration = "1h"
    #: A delay varies by this share of itself, so that many do not come back at once.
    jitter: float = 0.0

    def __post_init__(self) -> None:
        if self.delay is not None:
            duration_ms(self.delay, field="delay")
        duration_ms(self.delay_max, field="delay_max")
        if not 1 <= self.factor <= 100:
            raise InvalidInputError("A delay grows by a factor of 1 to 100.", field="factor")
        if not 0 <= self.jitter <= 1:
            raise InvalidInputError("Jitter is a share, from 0 to 1.", field="jitter")

    def delay_ms(self, retries: int, rng: random.Random) -> int | None:
        """The delay after so many retries; None: the usual one."""
        if self.delay is None:
            return None
        delay = float(duration_ms(self.delay, field="delay"))
        if self.factor > 1:
            delay *= self.factor ** min(retries, _GROWTHS_MAX)
            delay = min(delay, duration_ms(self.delay_max, field="delay_max"))
        return round(delay * (1 + self.jitter * (2 * rng.random() - 1)))


class Wait(msgspec.Struct, frozen=True):
    """Calls the step again when a switch changes, and now and then; `ctx.timed_out` tells why."""

    switch: str
    #: From the first Wait on that switch in this step on; None: for ever.
    at_most: Duration | None = None
    note: str = ""

    def __post_init__(self) -> None:
        require_switch(self.switch)
        if self.at_most is not None:
            duration_ms(self.at_most, field="at_most")


class Child(msgspec.Struct, frozen=True):
    """Calls another pipeline; what it ends with, this step ends with."""

    pipeline: str
    #: The input of this step, unless there is another one.
    input: Any = UNSET

    def __post_init__(self) -> None:
        require_name(self.pipeline, field="pipeline")


class Parallel(msgspec.Struct, frozen=True):
    """Runs pipelines beside each other, as transactions of their own; waits for all of them."""

    children: Sequence[Child]
    on_failure: Policy = "cancel_rest"

    def __post_init__(self) -> None:
        if self.on_failure not in POLICIES:
            raise InvalidInputError(
                f"on_failure is one of {', '.join(POLICIES)}.", field="on_failure"
            )
        if len(self.children) > CHILDREN_MAX:
            raise InvalidInputError(
                f"{len(self.children)} children are more than {CHILDREN_MAX}.", field="children"
            )
        if not all(isinstance(each, Child) for each in self.children):
            raise InvalidInputError("Parallel takes a list of Child.", field="children")


#: What a user's step may return beside its output.
SPOKEN = (Fail, Abort, RetryLater, Wait, Child, Parallel)


# -- For the machine -------------------------------------------------------------------------


class Success(msgspec.Struct, frozen=True):
    """The step is done; its output is the next step's input."""

    output: bytes
    note: str = ""
    #: Whether the state is to be archived as it is now, while it runs on.
    snapshot: bool = False


class Failure(msgspec.Struct, frozen=True):
    """The step has ended its pipeline, and so the transaction."""

    status: FailureStatus
    output: bytes
    note: str = ""
    #: For the journal alone.
    trace: str = ""


class Pause(msgspec.Struct, frozen=True):
    """The step is to be called again."""

    #: None: the usual delay, which depends on whether there is a switch.
    delay_ms: int | None = None
    switch: str = ""
    at_most_ms: int | None = None
    note: str = ""


class Call(msgspec.Struct, frozen=True):
    """A pipeline is to run in the place of the step."""

    pipeline: str
    input: bytes


class Calls(msgspec.Struct, frozen=True):
    """Pipelines are to run beside each other in the place of the step; there is at least one."""

    children: tuple[Call, ...]
    policy: Policy


Outcome = Success | Failure | Pause | Call | Calls


def settle(
    returned: object, given: bytes, *, retries: int = 0, rng: random.Random | None = None
) -> Outcome:
    """What a returned value means; `given` is the input of the step."""
    match returned:
        case None:
            return Success(given)
        case Fail():
            return Failure("failed", returned.output_json(), _short(returned.note))
        case Abort():
            return Failure("aborted", returned.output_json(), _short(returned.note))
        case RetryLater():
            delay_ms = returned.delay_ms(retries, rng or random.Random())
            return Pause(delay_ms=delay_ms, note=_short(returned.note))
        case Wait(switch=switch, at_most=at_most):
            at_most_ms = None if at_most is None else duration_ms(at_most, field="at_most")
            return Pause(switch=switch, at_most_ms=at_most_ms, note=_short(returned.note))
        case Child():
            return _call(returned, given)
        case Parallel(children=children, on_failure=policy):
            if not children:
                return Success(b"[]")
            return Calls(tuple(_call(each, given) for each in children), policy)
        case _:
            return Success(encode_json(returned, field="output"))


def _call(child: Child, given: bytes) -> Call:
    whole = isinstance(child.input, UnsetType)
    return Call(child.pipeline, given if whole else encode_json(child.input, field="input"))


def _short(note: str) -> str:
    return note[:NOTE_LENGTH_MAX]
