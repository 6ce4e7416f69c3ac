"""What clients get back: messages with their content, and the way from a reply to an error."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import msgspec

from waystation import errors
from waystation.errors import WaystationError
from waystation.runtime.decoding import decode_json
from waystation.runtime.json_text import (
    check_depth,
    free_mark,
    load_json,
    shield,
    too_deep,
    unshield,
)
from waystation.runtime.json_values import encode_json
from waystation.types.common import Problem


class Received(msgspec.Struct, frozen=True):
    """A message as a subscriber gets it."""

    id: str = msgspec.field(name="messageID")
    #: The content byte for byte as it was published.
    raw: msgspec.Raw = msgspec.field(name="content")

    @property
    def content(self) -> Any:
        """The decoded content. Lone surrogates stay; each invalid byte becomes U+FFFD."""
        return load_json(bytes(self.raw))


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a fetch; empty when nothing came in time."""

    messages: list[Received]
    #: Whether unread messages lie beyond these.
    more: bool = msgspec.field(name="moreMessages")
    #: Acknowledge with this; empty without messages.
    handle: str = msgspec.field(name="ackHandle", default="")
    #: Messages that expired before they were fetched.
    lost: int = msgspec.field(name="lostMessages", default=0)


class Answer(msgspec.Struct, frozen=True):
    """An HTTP reply, whichever library brought it."""

    status: int
    body: bytes


_T = TypeVar("_T")

#: What one request of a batch holds at most; larger batches take several requests.
BATCH_MESSAGES_MAX = 500
BATCH_BYTES_MAX = 256 * 1024


def decode_answer(answer: Answer, kind: type[_T]) -> _T:
    """Reads a reply."""
    try:
        return decode_json(answer.body, kind)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise errors.StationUnreachableError("What answered is not a station.") from error


def decode_batch(answer: Answer) -> Batch:
    """Return the reply of a fetch, each content byte for byte."""
    try:
        return decode_json(answer.body, Batch)
    except RecursionError:
        # The limit includes the frames of the caller. A new thread has almost none, so that it can
        # decode every content that the server accepted.
        with ThreadPoolExecutor(1) as thread:
            try:
                return thread.submit(decode_json, answer.body, Batch).result()
            except RecursionError as error:
                # DSPS accepts deeper contents, and its messages can be in the same store.
                raise too_deep("messages") from error
    except (msgspec.DecodeError, UnicodeDecodeError):
        # A message with a lone surrogate, or no reply of a station.
        mark = free_mark(answer.body)
    shielded = decode_answer(Answer(answer.status, shield(answer.body, mark)), Batch)
    messages = [
        Received(each.id, msgspec.Raw(unshield(bytes(each.raw), mark)))
        for each in shielded.messages
    ]
    return msgspec.structs.replace(shielded, messages=messages)


def encode_batches(messages: Iterable[tuple[str, Any]]) -> Iterator[tuple[list[str], bytes]]:
    """Bodies of requests that publish all messages in order, each with the ids that it holds."""
    ids: list[str] = []
    parts: list[bytes] = []
    size = 0
    for message_id, content in messages:
        part = b'{"id":"%b","content":%b}' % (message_id.encode(), _one_value(content, message_id))
        if ids and (len(ids) == BATCH_MESSAGES_MAX or size + len(part) > BATCH_BYTES_MAX):
            yield ids, b'{"messages":[%b]}' % b",".join(parts)
            ids, parts, size = [], [], 0
        ids.append(message_id)
        parts.append(part)
        size += len(part)
    if ids:
        yield ids, b'{"messages":[%b]}' % b",".join(parts)


def encode_content(content: Any) -> bytes:
    """JSON for a message; `msgspec.Raw` and bytes are taken as JSON already."""
    if isinstance(content, bytes):
        return content
    return encode_json(content, field="content")


def _one_value(content: Any, message_id: str) -> bytes:
    """The content, if it is one JSON value: bytes that are more could pass for other messages."""
    encoded = encode_content(content)
    check_depth(encoded, field=f"content of message {message_id}")
    try:
        msgspec.json.decode(shield(encoded), type=msgspec.Raw)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise errors.MessageMalformedError(
            f"The content of message {message_id} is not JSON: {error}."
        ) from error
    return encoded


def unreachable(url: str, error: BaseException) -> errors.StationUnreachableError:
    """The error for a station that did not answer, with what the system said, if it said it."""
    why, each = type(error).__name__, error.__cause__ or error.__context__ or error
    if isinstance(error, TimeoutError):
        why = "no answer in time"
    elif isinstance(each, OSError) and each.errno and each.strerror:
        # asyncio puts words of its own; errors of name services have negative numbers.
        why = os.strerror(each.errno) if each.errno > 0 else each.strerror
    return errors.StationUnreachableError(f"The station at {url} cannot be reached: {why}.")


def raise_for(answer: Answer) -> None:
    """Raises the error that a reply tells of."""
    if answer.status >= 400:
        raise error_for(answer)


def error_for(answer: Answer) -> WaystationError:
    """Return the error that a reply reports, as the class of its code."""
    try:
        problem = decode_json(answer.body, Problem)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        problem = Problem()
    return error_from(problem, answer.status)


def error_from(problem: Problem, status: int = 0) -> WaystationError:
    """Rebuild the error that a server sent, with its members and hint."""
    kind = errors.class_for(problem.code, status)
    message, hint = problem.detail.removesuffix(problem.hint).rstrip(), problem.hint
    if problem.error:
        # DSPS routes send no hint, and for most errors a text that only repeats the code.
        has_text = problem.code not in problem.error and problem.error != errors.UNAUTHORIZED
        message, hint = problem.error if has_text else kind.summary(), kind.remedy
    # Bypass the constructor, because it adds the remedy to an error that was sent without a hint.
    error = kind.__new__(kind)
    WaystationError.__init__(error, message or f"The server answered {status}.")
    error.hint = hint
    error.code = problem.code or kind.code
    if isinstance(error, errors.InvalidInputError):
        error.field = problem.errors[0].field if problem.errors else ""
    for name in kind.members:
        setattr(error, name, getattr(problem, name))
    return error
