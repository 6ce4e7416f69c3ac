"""`util/http`: asks another server, whose answer is the output; at once, or by calling back later.

A server that answers 202 to a step with `callback` has taken the request over, and posts its answer
to the URL in the header `waystation-callback`, once. That URL is good before the request leaves, so
no answer is too early. Every request of a step has the same `webhook-id`: a server that has done
it already can tell. Where requests go is said by the definition alone, never by data.
"""

from __future__ import annotations

import random
from typing import Literal

import msgspec

from waystation.delivery.addresses import AddressGuard
from waystation.delivery.headers import check_headers
from waystation.delivery.request import Failure, Outgoing
from waystation.delivery.request import Outcome as Sent
from waystation.delivery.schedule import RETRY_AFTER_SECONDS_MAX, Schedule, describe
from waystation.errors import InvalidInputError
from waystation.runtime.durations import Duration, duration_ms
from waystation.transactions.builtins.emission import services_of
from waystation.transactions.context import Context
from waystation.transactions.outcomes import Fail, Outcome, Pause, Success, settle
from waystation.transactions.steps import BuiltInStep
from waystation.transactions.switches import CALLBACK_SWITCH

REPLY_BYTES_MAX = 1_048_576
ATTEMPTS_MAX = 1000
_TIMEOUT_MS_MAX = 600_000
#: The machine's own patience with the step: longer than any request has.
_STEP_SECONDS = 660.0
_CONNECT_SECONDS_MAX = 5.0
_ACCEPTED = 202
#: Beside 5xx: the same request may well be answered later.
_LATER = frozenset({408, 429})
_WITHOUT_BODY = frozenset({"GET", "DELETE"})
_OURS = "waystation-"
#: How a URL is written. Which addresses are allowed, the node's own guard says: it is asked when a
#: pipeline is put into the book, and again when the request is made.
_syntax = AddressGuard(("0.0.0.0/0", "::/0"))
_SCHEDULE = Schedule(first_seconds=1.0, maximum_seconds=3600.0)
_accept = msgspec.json.Decoder().decode


class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Whom to ask, how, and how patiently."""

    url: str
    method: Literal["DELETE", "GET", "PATCH", "POST", "PUT"] = "POST"
    headers: dict[str, str] = {}
    #: Left out: the input, but for GET and DELETE.
    body: Literal["input", "none"] | None = None
    #: Of one request.
    timeout: str | float = 30.0
    #: Requests in all, while nobody answers or the server says that it cannot now.
    attempts: int = 5
    #: Whether the server may answer 202 and call back; a duration: and for how long it may take.
    callback: bool | str | float = False

    def __post_init__(self) -> None:
        try:
            _syntax.check_url(self.url)
            check_headers(self.headers.items())
            if any(name.lower().startswith(_OURS) for name in self.headers):
                raise InvalidInputError("Headers waystation-… are ours to set.", field="headers")
            if not 0 < duration_ms(self.timeout, field="timeout") <= _TIMEOUT_MS_MAX:
                raise InvalidInputError("timeout is at most 10 minutes.", field="timeout")
            if not isinstance(self.callback, bool):
                duration_ms(self.callback, field="callback")
        except InvalidInputError as error:
            # Within a struct, this is what becomes an error of validation.
            raise ValueError(error.message) from error
        if not 1 <= self.attempts <= ATTEMPTS_MAX:
            raise ValueError(f"attempts is a number from 1 to {ATTEMPTS_MAX}")

    @property
    def at_most(self) -> Duration | None:
        """How long an answer may take; None: as long as it takes."""
        return None if isinstance(self.callback, bool) else self.callback

    @property
    def calls_back(self) -> bool:
        """Whether the server may call back."""
        return self.callback is not False


async def run(ctx: Context, given: bytes, options: Options) -> Outcome:
    """Asks another server, and waits for its answer."""
    call = ctx.call
    if call.callback.startswith(b"+"):
        return Success(call.callback[1:])
    if ctx.timed_out:
        return settle(Fail("Nobody called back in time."), given)
    if "accepted" in call.recorded:
        return _wait(options)
    url = ""
    if options.calls_back:
        url = services_of(ctx).callback_url(ctx.transaction.id, ctx.place)
        if not url:
            return settle(Fail("http.public_url is not set: nobody could call back."), given)
        await call.open_callback()
    sent = await services_of(ctx).send(_request(ctx, given, options, url))
    if url and sent.status == _ACCEPTED:
        await ctx.once("accepted", lambda: True)
        return _wait(options)
    if sent.succeeded:
        return _answer(given, sent)
    return _refused(ctx, given, options, sent)


def _wait(options: Options) -> Pause:
    at_most = options.at_most
    return Pause(
        switch=CALLBACK_SWITCH,
        at_most_ms=None if at_most is None else duration_ms(at_most, field="callback"),
        note="waiting to be called back",
    )


def _request(ctx: Context, given: bytes, options: Options, callback: str) -> Outgoing:
    bare = options.body == "none" or (options.body is None and options.method in _WITHOUT_BODY)
    headers = {name.lower(): value for name, value in options.headers.items()}
    headers.setdefault("accept", "application/json")
    if not bare:
        headers.setdefault("content-type", "application/json")
    headers["webhook-id"] = ctx.idempotency_key
    if callback:
        headers["waystation-callback"] = callback
    if ctx.transaction.traceparent:
        headers.setdefault("traceparent", ctx.transaction.traceparent)
    seconds = duration_ms(options.timeout, field="timeout") / 1000
    return Outgoing(
        url=options.url,
        method=options.method,
        headers=tuple(headers.items()),
        body=b"" if bare else given,
        connect_seconds_max=min(seconds, _CONNECT_SECONDS_MAX),
        total_seconds_max=seconds,
        reply_bytes_max=REPLY_BYTES_MAX,
    )


def _answer(given: bytes, sent: Sent) -> Outcome:
    if sent.cut:
        told = f"The answer has more than {REPLY_BYTES_MAX} bytes."
        return settle(Fail(told), given)
    if not sent.body.strip():
        return Success(b"null")
    try:
        _accept(sent.body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return settle(Fail("The answer is no JSON."), given)
    return Success(sent.body)


def _refused(ctx: Context, given: bytes, options: Options, sent: Sent) -> Outcome:
    cause, attempt = describe(sent), ctx.retries + 1
    later = sent.status >= 500 or sent.status in _LATER
    if sent.failure is not None:
        # Only a forbidden address stays wrong; everything else may pass.
        later = sent.failure is not Failure.FORBIDDEN
    if not later or attempt >= options.attempts:
        return settle(Fail(f"{cause}, attempt {attempt} of {options.attempts}"), given)
    seconds = _SCHEDULE.wait_seconds(attempt, random.Random())
    if sent.retry_after is not None:
        seconds = max(seconds, min(sent.retry_after, RETRY_AFTER_SECONDS_MAX))
    return Pause(delay_ms=round(seconds * 1000), note=cause)


STEP = BuiltInStep("util/http", Options, run, timeout_seconds=_STEP_SECONDS)
