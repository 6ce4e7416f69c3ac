"""Every error that Waystation raises, one tree, each with a stable `code`.

The code is the contract: scripts and clients test it, never the text. How a code becomes an
HTTP status is decided in one place (`waystation.api.problems`), an exit code in another
(`waystation.cli.exits`). Errors of libraries are translated where they enter, not here.
"""

from __future__ import annotations


class WaystationError(Exception):
    """The root: catch this to catch everything that Waystation raises on purpose."""

    code = "internal"

    def __init__(self, message: str = "", *, hint: str = "") -> None:
        super().__init__(message or self.code)
        self.message = message or self.code
        #: What a person can do next; empty when there is nothing useful to say.
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} {self.hint}".rstrip()


class SettingsError(WaystationError):
    """A setting is unknown, malformed or contradicts another one; raised at start only."""

    code = "settings.invalid"


class InvalidInputError(WaystationError):
    """The caller sent something that can never be accepted; nothing was written."""

    code = "input.invalid"

    def __init__(self, message: str = "", *, field: str = "", hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.field = field


class TooLargeError(InvalidInputError):
    """A body or a value is over its limit; nothing was written."""

    code = "input.too-large"


class NotFiniteError(InvalidInputError):
    """A value has NaN or Infinity, which JSON cannot express; `field` is its path."""

    code = "input.not-finite"


class ForbiddenAddressError(InvalidInputError):
    """The endpoint is, or leads to, an address that requests must not reach.

    The text never tells which address a name resolved to: that would help to map a network.
    """

    code = "endpoint.forbidden"


class NotFoundError(WaystationError):
    """The thing does not exist, or belongs to another project."""

    code = "not-found"


class ConflictError(WaystationError):
    """A thing of that name is already there."""

    code = "conflict"


class BusyError(WaystationError):
    """A bound of this process is reached; the request was not begun and may be repeated."""

    code = "busy"


class StationUnreachableError(WaystationError):
    """A client could not reach the station, or it did not answer; the outcome is unknown."""

    code = "station.unreachable"


class ProducerClosedError(WaystationError):
    """A client's producer was closed before the message had a receipt; perhaps it was produced."""

    code = "producer.closed"


class UnauthenticatedError(WaystationError):
    """No key, or one that is malformed, unknown, revoked or expired."""

    code = "auth.required"


class TokenRejectedError(UnauthenticatedError):
    """A channel asks for a token, and none was shown, or one that does not open it."""

    code = "dsps.auth.rejected"

    def __init__(self, reason: str = "") -> None:
        super().__init__("Unauthorized")
        #: What is wrong with it; empty unless the settings let it be told.
        self.reason = reason


class ForbiddenError(WaystationError):
    """A valid key whose scopes do not cover the request."""

    code = "auth.forbidden"


class CatalogueError(WaystationError):
    """The catalogue database cannot be opened, read or written."""

    code = "catalogue.unavailable"


class ArchiveError(WaystationError):
    """Root of the errors of the archive."""

    code = "archive.error"


class ArchiveUnavailableError(ArchiveError):
    """The archive's database is away, slow or locked; nothing is lost, and it may be repeated."""

    code = "archive.unavailable"


class ArchiveFullError(ArchiveUnavailableError):
    """The archive's database has no room; nothing is lost, and it may be repeated."""

    code = "archive.full"


class ArchiveRefusedError(ArchiveError):
    """The archive must not be used: a newer release wrote it, say; told at start."""

    code = "archive.refused"


class ArchiveForeignError(ArchiveRefusedError):
    """The store has its states in another archive; told at start, and nothing was read from it."""

    code = "archive.foreign"


class StoreError(WaystationError):
    """Anything that the store or the way to it did; see the subclasses."""

    code = "store.error"


class StoreRefusedError(StoreError):
    """The store is set up in a way that would lose data; raised at start only."""

    code = "store.refused"


class StoreUnavailableError(StoreError):
    """The store could not be reached in time, or it said no; the call was NOT applied."""

    code = "store.unavailable"


class StoreDataLostError(StoreUnavailableError):
    """The store does not have the data set that this process works with; the call was NOT applied.

    All calls are refused until the data is back or an operator accepts the loss.
    """

    code = "store.data-lost"


class StoreFullError(StoreError):
    """The store is out of memory or disk; the call was NOT applied."""

    code = "store.full"
    #: A store that would make room by forgetting is refused at start.
    policy = "noeviction"


class OutcomeUnknownError(StoreError):
    """The connection died after the call was sent; it may or may not have been applied.

    The caller knows how to ask: repeat the call if it can be repeated, else look first.
    """

    code = "store.outcome-unknown"


class StoreReplyError(StoreError):
    """The store answered this one call with an error; `reply` is its text."""

    code = "store.reply"

    def __init__(self, reply: str) -> None:
        super().__init__(f"the store answered: {reply}")
        self.reply = reply


class ChannelError(WaystationError):
    """Root of the errors of channels; the codes are those that DSPS clients know."""

    code = "dsps.channel"


class InvalidChannelError(ChannelError):
    """The channel name is well formed, but no channel rule allows it."""

    code = "dsps.storage.invalid-channel"


class ChannelFullError(ChannelError):
    """The channel keeps as many messages as its rule allows; nothing was published."""

    code = "channel.full"


class SubscriptionNotFoundError(ChannelError):
    """The subscriber was never created, was deleted, or expired."""

    code = "dsps.storage.subscription-not-found"


class AckHandleMalformedError(ChannelError):
    """The handle is not one that this channel and subscriber were given."""

    code = "dsps.storage.ack-handle-malformed"


class MessageMalformedError(ChannelError):
    """The content of a message is not JSON."""

    code = "dsps.storage.message-json-malformed"


class LogError(WaystationError):
    """Root of the errors of logs."""

    code = "log.error"


class LogNotFoundError(LogError):
    """There is no such log, or no such partition of it."""

    code = "log.not-found"


class LogSealedError(LogError):
    """The partition takes nothing more; what follows it does. Nothing was written."""

    code = "log.sealed"

    def __init__(self, message: str = "The partition is sealed.", *, following: int) -> None:
        super().__init__(message)
        self.following = following


class LogFullError(LogError):
    """The partition keeps as much as its retention allows and refuses more; nothing was written."""

    code = "log.full"
    #: Under any other, a partition makes room.
    policy = "refuse"


class OffsetOutOfRangeError(LogError):
    """The offset is before what is kept or after the end; `first` and `end` say what is valid."""

    code = "log.offset-out-of-range"

    def __init__(self, message: str, *, first: int, end: int) -> None:
        super().__init__(message, hint=f"Valid are {first} to {end}.")
        self.first = first
        self.end = end


class LogDamagedError(LogError):
    """Entries of a log are missing, though retention has not removed them; the rest can be read."""

    code = "log.damaged"

    def __init__(self, message: str = "", *, start: int = 0, end: int = 0, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        #: The offsets from `start` up to, but not including, `end` are missing.
        self.start = start
        self.end = end


class TopicNotFoundError(NotFoundError):
    """There is no such topic in the project, or it was deleted."""

    code = "topic.not-found"


class TopicSubscribedError(ConflictError):
    """A topic was to be deleted or purged that subscriptions read; nothing was written."""

    code = "topic.subscribed"


class GrowthStopsSubscriptionsError(ConflictError):
    """Subscriptions could not follow their topic into a storage topic; nothing was written."""

    code = "topic.growth-stops-subscriptions"


class TopicBlockedError(WaystationError):
    """The topic takes no messages for now; nothing was written."""

    code = "topic.blocked"


class GroupRequiredError(InvalidInputError):
    """A message for a grouped topic has no group; nothing of its request was produced."""

    code = "topic.group-required"


class RateLimitedError(WaystationError):
    """The topic has no credit left for now; nothing of the request was produced."""

    code = "topic.rate-limited"

    def __init__(self, message: str = "", *, retry_after_seconds: int) -> None:
        super().__init__(message, hint=f"Try again in {retry_after_seconds} s.")
        self.retry_after_seconds = retry_after_seconds


class SchemaInvalidError(InvalidInputError):
    """What was given as a topic's JSON Schema is none, or one that cannot be used here."""

    code = "topic.schema-invalid"


class SchemaMismatchError(InvalidInputError):
    """A payload does not match the topic's schema; nothing of its request was produced."""

    code = "topic.schema-mismatch"

    def __init__(self, message: str = "", *, field: str, path: str, position: int) -> None:
        super().__init__(message, field=field)
        #: JSON Pointer into the payload; empty: the payload itself.
        self.path = path
        #: Of the message in its batch, from 0.
        self.position = position


class UnsupportedMediaTypeError(WaystationError):
    """The body's content type promises a format that is not spoken here; nothing was produced."""

    code = "input.unsupported-media-type"
