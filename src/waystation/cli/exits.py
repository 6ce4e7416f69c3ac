"""Exit codes that scripts can use, and the one place that turns errors into them."""

from __future__ import annotations

from waystation import errors

FAILED = 1
USAGE = 2
NOT_FOUND = 3
REFUSED = 4
UNAVAILABLE = 5
CONFLICT = 6
INTERRUPTED = 130

#: The first class that fits decides.
_CODES: tuple[tuple[type[errors.WaystationError], int], ...] = (
    (errors.SettingsError, USAGE),
    (errors.InvalidInputError, USAGE),
    (errors.MessageMalformedError, USAGE),
    (errors.UnsupportedMediaTypeError, USAGE),
    (errors.AckHandleMalformedError, USAGE),
    (errors.InvalidChannelError, USAGE),
    (errors.OffsetOutOfRangeError, USAGE),
    (errors.NotFoundError, NOT_FOUND),
    (errors.LogNotFoundError, NOT_FOUND),
    (errors.SubscriberNotFoundError, NOT_FOUND),
    (errors.UnauthenticatedError, REFUSED),
    (errors.ForbiddenError, REFUSED),
    (errors.StationUnreachableError, UNAVAILABLE),
    (errors.StoreError, UNAVAILABLE),
    (errors.ArchiveError, UNAVAILABLE),
    (errors.CatalogueError, UNAVAILABLE),
    (errors.BusyError, UNAVAILABLE),
    (errors.ChannelFullError, UNAVAILABLE),
    (errors.LogFullError, UNAVAILABLE),
    (errors.RateLimitedError, UNAVAILABLE),
    (errors.ConflictError, CONFLICT),
    (errors.LogSealedError, CONFLICT),
    (errors.HistoryBusyError, CONFLICT),
    (errors.TopicBlockedError, REFUSED),
)


def exit_code(error: errors.WaystationError) -> int:
    """The exit code for an error."""
    for kind, code in _CODES:
        if isinstance(error, kind):
            return code
    return FAILED
