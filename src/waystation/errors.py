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


class TransientError(WaystationError):
    """A backend is unavailable or overloaded, or the outcome is unknown; repeat the call later.

    A base beside the one that names the backend. `Service.repeat` and `retry_transient` repeat
    these errors and no others.
    """

    code = "transient"


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


class BusyError(TransientError):
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


class CatalogueError(TransientError):
    """The catalogue database cannot be opened, read or written."""

    code = "catalogue.unavailable"


class ArchiveError(WaystationError):
    """Root of the errors of the archive."""

    code = "archive.error"


class ArchiveUnavailableError(ArchiveError, TransientError):
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


class StoreUnavailableError(StoreError, TransientError):
    """The store could not be reached in time, or it said no; the call was NOT applied."""

    code = "store.unavailable"


class StoreDataLostError(StoreUnavailableError):
    """The store does not have the data set that this process works with; the call was NOT applied.

    All calls are refused until the data is back or an operator accepts the loss.
    """

    code = "store.data-lost"


class StoreFullError(StoreError, TransientError):
    """The store is out of memory or disk; the call was NOT applied."""

    code = "store.full"
    #: A store that would make room by forgetting is refused at start.
    policy = "noeviction"


class OutcomeUnknownError(StoreError, TransientError):
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


class SubscriberNotFoundError(ChannelError):
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


class TransactionUnknownError(NotFoundError):
    """There is no such transaction, or it belongs to another project."""

    code = "transaction.unknown"


class AlreadyQueuedError(ConflictError):
    """A transaction with the id that was given is queued already; nothing was written."""

    code = "transaction.already-queued"


class NotRunningError(ConflictError):
    """What does not run was to be completed; nothing was written."""

    code = "transaction.not-running"


class StatusInvalidError(InvalidInputError):
    """A transaction was to be completed with what is no final status; nothing was written."""

    code = "transaction.status-invalid"


class IllegalTransitionError(ConflictError):
    """The table of transitions does not have this one; nothing was written."""

    code = "transaction.illegal-transition"

    def __init__(self, message: str = "", *, from_state: str, to_state: str) -> None:
        super().__init__(message or f"A transaction cannot go from {from_state} to {to_state}.")
        self.from_state = from_state
        self.to_state = to_state


class LeaseLostError(ConflictError):
    """A transaction is not held by the caller any more; nothing was written."""

    code = "transaction.lease-lost"


class DuplicateTransactionError(ConflictError):
    """The external id is taken by a transaction that was started with other content."""

    code = "transaction.duplicate"

    def __init__(self, message: str = "", *, existing_id: str) -> None:
        super().__init__(message or f"The external id belongs to {existing_id}.")
        self.existing_id = existing_id


class TransactionFinalError(ConflictError):
    """A transaction that has ended was to be woken, cancelled or given a switch."""

    code = "transaction.final"


class NotSleepingError(ConflictError):
    """A transaction was to be woken that does not sleep; `state` says what it does."""

    code = "transaction.not-sleeping"

    def __init__(self, message: str = "", *, state: str) -> None:
        super().__init__(message or f"The transaction does not sleep, it is {state}.")
        self.state = state


class TransactionLoadingError(BusyError):
    """A transaction is being brought back from the archive by others; it may be repeated."""

    code = "transaction.loading"


class CallbackUnknownError(NotFoundError):
    """Nobody was told to call back there: the URL is not ours, or its transaction is gone."""

    code = "callback.unknown"


class CallbackUsedError(ConflictError):
    """The callback was used before, or the step that asked has ended; nothing was written."""

    code = "callback.used"


class CallbackInvalidError(InvalidInputError):
    """What was posted to a callback is no JSON; it may be posted again."""

    code = "callback.invalid"


class SwitchInvalidError(InvalidInputError):
    """The name or the value of a switch is none that can be kept; nothing was written."""

    code = "transaction.switch-invalid"


class ReplyInvalidError(InvalidInputError):
    """Replies were asked for that cannot be sent: a bad or forbidden URL, no such channel or topic.

    Nothing was started.
    """

    code = "transaction.reply-invalid"


class PipelineUnknownError(NotFoundError):
    """There is no such pipeline in the project."""

    code = "pipeline.unknown"


class NotATypeError(InvalidInputError):
    """The pipeline is there, but may not be started from outside."""

    code = "pipeline.not-a-type"


class PipelineInvalidError(InvalidInputError):
    """The definition of a pipeline has no step, an unknown option or a bad value."""

    code = "pipeline.invalid"


class AppInvalidError(SettingsError):
    """An app cannot be loaded: no such module or name, or its code is at fault."""

    code = "app.invalid"


class SubscriptionNotFoundError(NotFoundError):
    """There is no such subscription in the project."""

    code = "subscription.not-found"


class GroupMismatchError(InvalidInputError):
    """A grouped subscription was asked for, to a topic that is not grouped; nothing was written."""

    code = "subscription.group-mismatch"


class EndpointInvalidError(InvalidInputError):
    """A subscription cannot deliver to such an endpoint; nothing was written."""

    code = "subscription.endpoint-invalid"


class ShardsInvalidError(InvalidInputError):
    """A subscription cannot have so many shards; nothing was written."""

    code = "subscription.shards-invalid"


class NotParkedError(ConflictError):
    """What was to be redriven is not among the dead letters, or is not parked there."""

    code = "subscription.not-parked"


class GroupCleanError(ConflictError):
    """The head of a group was to be skipped or purged, and the group has none."""

    code = "subscription.group-clean"


class OperationNotFoundError(NotFoundError):
    """There is no such operation of the subscription, or it was forgotten."""

    code = "subscription.operation-not-found"


class OperationEndedError(ConflictError):
    """An operation was to be paused, resumed or cancelled that has come to its end."""

    code = "subscription.operation-ended"


class ResetOutOfRangeError(InvalidInputError):
    """A subscription cannot be reset to there; nothing was written.

    Its topic has no messages there, or the subscription's number of shards cannot follow the
    growth of the topic from there on.
    """

    code = "subscription.reset-out-of-range"


class ShardFrozenError(ConflictError):
    """A shard takes nothing while it is frozen; nothing was written."""

    code = "subscription.frozen"


class ShardLostError(ConflictError):
    """A shard is not the caller's any more, or is not there; nothing was written."""

    code = "subscription.lease-lost"


class WaitOverError(WaystationError):
    """What a client waited for did not come in time; it may still come."""

    code = "wait.over"


class PoolNotFoundError(NotFoundError):
    """There is no such pool in the project."""

    code = "pool.not-found"


class PoolClosedError(ConflictError):
    """A pool that is being deleted takes no message and no worker; nothing was written."""

    code = "pool.closed"


class PoolFullError(BusyError):
    """A pool has as many messages, bytes or keys as it may have; nothing was written."""

    code = "pool.full"


class PoolMirroredError(ConflictError):
    """Agents with the redis-events plugin serve the pool; no other worker can register."""

    code = "pool.mirrored"


class PoolCannotAnswerError(InvalidInputError):
    """A caller waits for an answer of a mirrored pool whose agents cannot answer."""

    code = "pool.cannot-answer"


class MirrorTakenError(ConflictError):
    """Agents of a store can serve one pool, and another is it; nothing was written."""

    code = "pool.mirror-taken"


class KeyInvalidError(InvalidInputError):
    """A recipient key is empty, too long, or has letters that cannot be printed."""

    code = "pool.key-invalid"


class KeyBusyError(ConflictError):
    """A key cannot be forgotten while it has messages; nothing was written."""

    code = "pool.key-busy"


class KeyTakenError(ConflictError):
    """A key cannot be moved while its worker has a message of it; nothing was written."""

    code = "pool.key-taken"


class WorkerUnknownError(NotFoundError):
    """A worker is not registered, or by another session than the caller's: register anew."""

    code = "pool.worker-unknown"


class WorkerEvictedError(ConflictError):
    """A worker was not heard of while messages waited, and its keys were given to others.

    It gets keys again when it has registered anew.
    """

    code = "pool.worker-evicted"


class WorkersFullError(BusyError):
    """A pool has as many workers as it may have; nothing was written."""

    code = "pool.workers-full"


class NotStaleError(ConflictError):
    """The keys of a worker were to be moved because it is stale, and it is not."""

    code = "pool.not-stale"


class EnvelopeInvalidError(InvalidInputError):
    """What came to the relay is no DIDComm envelope with recipients; nothing was enqueued."""

    code = "relay.envelope-invalid"


class MessageInvalidError(InvalidInputError):
    """A message of the outbound list can never be delivered; it is a dead letter, with its text."""

    code = "deliverer.message-invalid"


class HistoryError(WaystationError):
    """Root of the errors of history."""

    code = "history.error"


class HistoryMissingError(SettingsError):
    """PySpark, pyarrow or deltalake is not installed; raised at start only."""

    code = "history.missing"


class NoJavaError(SettingsError):
    """Spark needs Java 17 or newer, and there is none; raised at start only."""

    code = "history.no-java"


class SourceOptionError(InvalidInputError):
    """An option of the Spark source is unknown, malformed, or has a secret in it."""

    code = "history.option-invalid"


class QueryError(InvalidInputError):
    """A query of the lake that Spark does not understand, or cannot answer."""

    code = "history.query"


class SparkStartError(HistoryError):
    """Spark does not start: its log says why."""

    code = "history.spark-start"


class SparkGoneError(HistoryError):
    """The process of Spark has ended under a job; whoever starts the job anew loses nothing."""

    code = "history.spark-gone"


class TaskFailedError(HistoryError):
    """A task of Spark has failed each time that it was tried; nothing was committed."""

    code = "history.task-failed"


class TrimmedError(HistoryError):
    """Messages were trimmed before they were read, and the reader asked to be told."""

    code = "history.trimmed"


class StoreWentBackError(HistoryError):
    """A log ends before what was read of it: the store was restored, or has lost its tail."""

    code = "history.store-went-back"


class NoStoreError(HistoryError):
    """There is no store to read, or no server has used it yet; none was created."""

    code = "history.no-store"


class OtherDataSetError(HistoryError):
    """The store has another data set than the server that was named; nothing was read."""

    code = "history.other-data-set"


class LakeRefusedError(HistoryError):
    """A table of the lake is not ours, or has another type in one of our columns."""

    code = "history.lake-refused"


class NoLakeError(LakeRefusedError):
    """There is no lake at that place; ingest creates one."""

    code = "history.no-lake"


class LakeDamagedError(HistoryError):
    """A file of the lake is missing, or is not what was written; nothing was changed."""

    code = "history.lake-damaged"


class LakeWriteError(HistoryError):
    """The lake cannot be written to: its disk is full, or it may not; nothing is half in it."""

    code = "history.lake-write"


class HistoryBusyError(HistoryError):
    """Another ingest has the lease, or has committed first; nothing was written."""

    code = "history.busy"
