"""The only source of identity: names that people choose, and ids that we make.

Names become parts of store keys, so their alphabet is narrow: nothing in it can close a hash
tag, start a pattern or look like a path.
"""

from __future__ import annotations

import itertools
import re
import secrets
from typing import Protocol

from waystation.errors import InvalidInputError

#: Channels, subscribers, messages, projects: 1 to 63 characters, the rule of DSPS.
NAME_PATTERN = r"^[0-9a-z][0-9a-z_-]{0,62}$"
_is_name = re.compile(r"[0-9a-z][0-9a-z_-]{0,62}").fullmatch


def is_name(value: str) -> bool:
    """Whether `value` may name a channel, subscriber, message or project."""
    return _is_name(value) is not None


def require_name(value: str, *, field: str) -> str:
    """Returns `value`, or raises an error that names the field and the rule."""
    if not is_name(value):
        raise InvalidInputError(
            f"{field} {value[:80]!r} is not a name.",
            field=field,
            hint="Use 1 to 63 of a-z, 0-9, '_' and '-', beginning with a letter or digit.",
        )
    return value


class Identity(Protocol):
    """Where new ids come from; tests hand in a predictable one."""

    def token(self, size: int) -> str:
        """Returns `size` random bytes as lower-case hex."""
        ...


class RandomIdentity:
    """Ids from the operating system's randomness: unguessable, fit for secrets."""

    def token(self, size: int) -> str:
        return secrets.token_hex(size)


class SequentialIdentity:
    """Ids that nobody else makes, and that are no secret: a random beginning, then a count.

    To ask the operating system for each message would cost more than all else that is done for it.
    """

    def __init__(self, identity: Identity) -> None:
        self._beginning = identity.token(10)
        self._count = itertools.count(1)

    def token(self, size: int) -> str:
        # In half the time of an f-string whose width is computed.
        return "%s%0*x" % (self._beginning, size * 2 - 20, next(self._count))  # noqa: UP031


class CountingIdentity:
    """Ids 1, 2, 3… for tests and examples whose output is compared."""

    def __init__(self) -> None:
        self._count = 0

    def token(self, size: int) -> str:
        self._count += 1
        return f"{self._count:0{size * 2}x}"
