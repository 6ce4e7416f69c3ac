"""Types that all parts of the public interface share."""

from __future__ import annotations

from typing import Generic, TypeVar

from msgspec import Struct

T = TypeVar("T")


class Page(Struct, Generic[T], frozen=True):
    """Part of a list."""

    items: list[T]
    #: Text that continues the list behind this page; empty on the last page.
    cursor: str = ""


class ProblemField(Struct, frozen=True):
    """An invalid field of a request."""

    field: str = ""


class Problem(Struct, frozen=True):
    """An error reply, as problem+json (RFC 9457) or in the shape of DSPS.

    The members after `retry_after_s` are those of single error classes; a reply has the members of
    its class only.
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
