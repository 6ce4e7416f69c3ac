"""Types that all parts of the public interface share."""

from __future__ import annotations

from typing import Annotated, Generic, Literal, TypeVar

from msgspec import Meta, Struct

T = TypeVar("T")

#: Behaviour of a partition that reached its byte limit. `refuse` deletes messages that all readers
#: have passed and rejects the append if that frees too little. `drop_and_count` deletes the oldest
#: messages and counts those that a reader still needed.
FullPolicy = Literal["refuse", "drop_and_count"]

#: Part of a message or transaction that history keeps (`waystation.messages.redaction`).
Record = Literal["full", "headers", "none"]
#: JSON pointer (RFC 6901): empty is the whole document, else a slash before each token; `~0` is
#: `~`, `~1` is `/`.
POINTER_PATTERN = r"^(/([^/~]|~[01])*)*\Z"
POINTER_CHARACTERS_MAX = 1000
POINTERS_MAX = 100
Pointer = Annotated[str, Meta(pattern=POINTER_PATTERN, max_length=POINTER_CHARACTERS_MAX)]
Pointers = Annotated[tuple[Pointer, ...], Meta(max_length=POINTERS_MAX)]


class Page(Struct, Generic[T], frozen=True):
    """A page of a list, in the order of the list."""

    items: list[T]
    #: Text that continues the list behind this page; empty on the last page.
    cursor: str = ""


class ProblemField(Struct, frozen=True):
    """An invalid field of a request."""

    field: str = ""


class Problem(Struct, frozen=True, omit_defaults=True):
    """An error reply, as problem+json (RFC 9457) or in the shape of DSPS.

    A reply has the members after `retry_after_s` only if its error code defines them. For example,
    `first` and `end` are the offsets of a partition in an error about an offset.
    """

    code: str = ""
    #: Message and hint in one text.
    detail: str = ""
    #: Next step for a person; empty if there is no useful one.
    hint: str = ""
    #: Text of a DSPS reply, which has no `detail`.
    error: str = ""
    errors: tuple[ProblemField, ...] = ()
    retry_after_s: int | float = 1
    first: int = 0
    end: int = 0
    path: str = ""
    policy: str = ""
    position: int = 0
    existing_id: str = ""
    state: str = ""
    from_state: str = ""
    to_state: str = ""
    key: str = ""
