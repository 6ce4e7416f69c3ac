"""All errors that Waystation raises, in one tree.

A class states everything about its kind of error once: the code, the HTTP status, the exit code
of the command line, the remedy and the attributes that a problem reply carries. Server, client and
command line read these attributes. Programs compare codes, which never change; texts may change.

Errors of libraries are translated by the module that calls the library.
"""

from __future__ import annotations

from enum import IntEnum
from typing import ClassVar


class ExitCode(IntEnum):
    """Exit codes of the command line."""

    FAILED = 1
    USAGE = 2
    NOT_FOUND = 3
    REFUSED = 4
    UNAVAILABLE = 5
    CONFLICT = 6
    INTERRUPTED = 130


# -- Base classes ------------------------------------------------------------------------------


class WaystationError(Exception):
    """Base of all errors that Waystation raises on purpose."""

    #: Stable name of the kind of error, compared by programs.
    code: str = "internal"
    #: HTTP status; None if the error is never sent over HTTP.
    status: ClassVar[int | None] = 500
    exit_code: ClassVar[ExitCode] = ExitCode.FAILED
    #: Default hint: the next command to run or the setting to change.
    remedy: ClassVar[str] = ""
    #: Attributes that a problem reply carries under the same names.
    members: ClassVar[tuple[str, ...]] = ()

    def __init__(self, message: str = "", *, hint: str = "") -> None:
        super().__init__(message or self.code)
        self.message = message or self.code
        #: Next step for a person; empty if there is no useful one.
        self.hint = hint or self.remedy

    def __str__(self) -> str:
        return f"{self.message} {self.hint}".rstrip()

    @classmethod
    def summary(cls) -> str:
        """Return when the error is raised: the first paragraph of the class docstring."""
        return " ".join((cls.__doc__ or cls.code).split("\n\n")[0].split())


class InvalidInputError(WaystationError):
    """The request is invalid and will be rejected however often it is sent. Nothing was written."""

    code = "input.invalid"
    status: ClassVar[int | None] = 400
    exit_code = ExitCode.USAGE

    def __init__(self, message: str = "", *, field: str = "", hint: str = "") -> None:
        super().__init__(message, hint=hint)
        #: Name of the invalid field; empty if the error is not about one field.
        self.field = field


class NotFoundError(WaystationError):
    """The object does not exist, or it belongs to another project."""

    code = "not-found"
    status = 404
    exit_code = ExitCode.NOT_FOUND


class ConflictError(WaystationError):
    """The object exists already, or its state does not allow the request. Nothing was written."""

    code = "conflict"
    status = 409
    exit_code = ExitCode.CONFLICT


class TransientError(WaystationError):
    """Base of the errors after which the same call may succeed later.

    A backend is unavailable or overloaded, or the outcome of the call is unknown. The class is a
    second base beside the one that names the backend. `Service.repeat` and `retry_transient` repeat
    calls after these errors and no others.
    """

    code = "transient"
    status = 503
    exit_code = ExitCode.UNAVAILABLE


class BusyError(TransientError):
    """A limit of this process is reached. The request was not started and can be repeated."""

    code = "busy"


class SettingsError(WaystationError):
    """A setting is unknown, malformed or contradicts another setting. Raised only at start."""

    code = "settings.invalid"
    status = None
    exit_code = ExitCode.USAGE


# -- Requests ----------------------------------------------------------------------------------


class TooLargeError(InvalidInputError):
    """A body or a value exceeds its size limit. Nothing was written."""

    code = "input.too-large"
    status = 413


class NotFiniteError(InvalidInputError):
    """A value contains NaN or Infinity, which JSON cannot express. `field` is the path to it."""

    code = "input.not-finite"


class JsonTooDeepError(InvalidInputError):
    """A JSON value is nested deeper than 900 levels. Nothing was written."""

    code = "input.too-deep"
    remedy = "Send a flatter value, or send the deep part as a string that contains its JSON."


class UnsupportedMediaTypeError(WaystationError):
    """The server does not support the content type of the body. Nothing was written."""

    code = "input.unsupported-media-type"
    status = 415
    exit_code = ExitCode.USAGE


class ForbiddenAddressError(InvalidInputError):
    """The host of an endpoint resolves to an address that outgoing requests must not reach.

    The text never contains the resolved address, because it would help to map a private network.
    """

    code = "endpoint.forbidden"


# -- Authentication ----------------------------------------------------------------------------


#: Text of every rejection on a DSPS route.
UNAUTHORIZED = "Unauthorized"


class UnauthenticatedError(WaystationError):
    """The request has no key, or its key is malformed, unknown, revoked or expired."""

    code = "auth.required"
    status = 401
    exit_code = ExitCode.REFUSED
    remedy = "Create a key with `waystation keys create` and set WAYSTATION_KEY to it."


class TokenRejectedError(UnauthenticatedError):
    """The channel requires a key or a token, and the request has none or an invalid one."""

    code = "dsps.auth.rejected"
    status = 403
    #: Reason why the token is invalid; empty unless the settings permit the server to disclose it.
    reason = ""

    def __init__(self, message: str = UNAUTHORIZED, *, hint: str = "", reason: str = "") -> None:
        super().__init__(message, hint=hint)
        self.reason = reason


class ForbiddenError(WaystationError):
    """The key is valid, but its scopes do not permit the request."""

    code = "auth.forbidden"
    status = 403
    exit_code = ExitCode.REFUSED


# -- Client ------------------------------------------------------------------------------------


class StationUnreachableError(WaystationError):
    """The client could not connect to the server, or got no valid reply.

    The server may have carried out the request.
    """

    code = "station.unreachable"
    status = None
    exit_code = ExitCode.UNAVAILABLE
    remedy = "Start a server with `waystation dev`, or pass the address of yours with --url."


class ProducerClosedError(WaystationError):
    """The client's producer was closed before the message had a receipt.

    The message may have been produced.
    """

    code = "producer.closed"
    status = None


class WaitTimeoutError(WaystationError):
    """The state that the client waited for was not reached in time. It may still be reached."""

    code = "wait.over"
    status = None

    def __init__(self, message: str = "", *, hint: str = "", last: object = None) -> None:
        super().__init__(message, hint=hint)
        #: The last state that the client received.
        self.last = last


# -- Store -------------------------------------------------------------------------------------


class StoreError(WaystationError):
    """Base of the errors of the store and of the connection to it."""

    code = "store.error"
    exit_code = ExitCode.UNAVAILABLE


class StoreRefusedError(StoreError):
    """The configuration of the store would lose data. Raised only at start."""

    code = "store.refused"
    status = None


class StoreFileDamagedError(StoreRefusedError):
    """An append-only file of the embedded store is damaged or missing. The store does not start."""

    code = "store.file-damaged"
    remedy: ClassVar[str] = "Run `waystation store check --fix`."


class StoreInUseError(StoreError):
    """A process uses the embedded store, so its files cannot be checked. Nothing was changed."""

    code = "store.in-use"
    status = None
    exit_code = ExitCode.CONFLICT


class StoreUnavailableError(StoreError, TransientError):
    """The store did not accept the call in time. The call was not applied and can be repeated."""

    code = "store.unavailable"
    status = 503


class StoreDataLostError(StoreUnavailableError):
    """The store lost the data set that this process works with. The call was not applied.

    The process rejects all calls until the data is restored or an operator accepts the loss.
    """

    code = "store.data-lost"


class StoreFullError(StoreError, TransientError):
    """The store has no free memory or disk space. The call was not applied."""

    code = "store.full"
    status = 507
    members = ("policy",)
    #: The only eviction policy that the start checks accept.
    policy = "noeviction"


class OutcomeUnknownError(StoreError, TransientError):
    """The connection was lost after the call was sent. The call may have been applied.

    Repeat the call if it is repeatable; otherwise read the state first.
    """

    code = "store.outcome-unknown"
    status = 503


class StoreReplyError(StoreError):
    """The store answered one call with an error. `reply` is the text of the store."""

    code = "store.reply"

    def __init__(self, reply: str) -> None:
        super().__init__(f"the store answered: {reply}")
        self.reply = reply


class StoreDamagedError(StoreError):
    """A key of the store has an invalid type or value. Nothing was written.

    Another program wrote the key, or a backup was restored incompletely.
    """

    code = "store.damaged"
    status = 409
    exit_code = ExitCode.CONFLICT
    members = ("key",)

    def __init__(self, message: str = "", *, hint: str = "", key: str) -> None:
        super().__init__(
            message or f"Key '{key}' of the store has an invalid type or value.",
            hint=hint
            or f"Restore the key from a backup, or delete it in the store with `DEL {key}`.",
        )
        #: The damaged key.
        self.key = key

    @classmethod
    def of_log(cls, key: str) -> StoreDamagedError:
        """Return the error for a key of a log, which must be repaired, because it has messages."""
        return cls(
            f"Key '{key}' of a log is damaged, or another program has written to it.",
            hint="Do not delete the key, because it has messages. Repair it as the section"
            " 'A log is damaged' of docs/operating/troubleshooting.md says.",
            key=key,
        )


# -- Databases: catalogue and archive ----------------------------------------------------------


class CatalogueError(TransientError):
    """The catalogue database cannot be opened, read or written."""

    code = "catalogue.unavailable"


class ArchiveError(WaystationError):
    """Base of the errors of the archive."""

    code = "archive.error"
    exit_code = ExitCode.UNAVAILABLE


class ArchiveUnavailableError(ArchiveError, TransientError):
    """The archive's database is unreachable, slow or locked. The call can be repeated."""

    code = "archive.unavailable"
    status = 503


class ArchiveFullError(ArchiveUnavailableError):
    """The archive's database has no free disk space. The call can be repeated."""

    code = "archive.full"


class ArchiveRefusedError(ArchiveError):
    """The archive must not be used, for example because a newer release wrote it.

    Raised only at start.
    """

    code = "archive.refused"
    status = None


class ArchiveForeignError(ArchiveRefusedError):
    """The transactions of the store are in another archive. Raised only at start."""

    code = "archive.foreign"


# -- Logs --------------------------------------------------------------------------------------


class LogError(WaystationError):
    """Base of the errors of logs."""

    code = "log.error"


class LogNotFoundError(LogError):
    """The log or the partition does not exist."""

    code = "log.not-found"
    status = 404
    exit_code = ExitCode.NOT_FOUND


class LogSealedError(LogError):
    """The partition is sealed and accepts no more messages. Nothing was written."""

    code = "log.sealed"
    status = 409
    exit_code = ExitCode.CONFLICT

    def __init__(
        self, message: str = "The partition is sealed.", *, hint: str = "", next_index: int
    ) -> None:
        super().__init__(message, hint=hint)
        #: Index of the storage topic that continues this one.
        self.next_index = next_index


class LogFullError(LogError):
    """The partition reached `max_bytes` and its policy is `refuse`. Nothing was written."""

    code = "log.full"
    status = 507
    exit_code = ExitCode.UNAVAILABLE
    remedy = "Let the subscriptions catch up, or raise `max_bytes` of the topic."
    members = ("policy",)
    #: The only policy under which a partition rejects messages.
    policy = "refuse"


class OffsetOutOfRangeError(LogError):
    """The offset was trimmed, or it is behind the end of the partition."""

    code = "log.offset-out-of-range"
    status = 400
    exit_code = ExitCode.USAGE
    members = ("first", "end")

    def __init__(self, message: str = "", *, hint: str = "", first: int, end: int) -> None:
        super().__init__(message, hint=hint or f"Use an offset from {first} to {end}.")
        #: Oldest offset that is stored.
        self.first = first
        #: Offset of the next message.
        self.end = end


class LogDamagedError(LogError):
    """Entries of a log are missing that retention did not delete. The others can be read."""

    code = "log.damaged"

    def __init__(self, message: str = "", *, start: int = 0, end: int = 0, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        #: First missing offset.
        self.start = start
        #: Offset behind the last missing one.
        self.end = end


# -- Topics ------------------------------------------------------------------------------------


class TopicNotFoundError(NotFoundError):
    """The topic does not exist in the project, or it was deleted."""

    code = "topic.not-found"
    remedy = (
        "List topics with `waystation topic list`, or create it with `waystation topic create`."
    )


class TopicSubscribedError(ConflictError):
    """Subscriptions read the topic, so it cannot be deleted or purged. Nothing was written."""

    code = "topic.subscribed"


class GrowthStopsSubscriptionsError(ConflictError):
    """Subscriptions could not follow the topic to the new storage topic. Nothing was written."""

    code = "topic.growth-stops-subscriptions"


class TopicBlockedError(WaystationError):
    """The topic is blocked for producers. Nothing was written."""

    code = "topic.blocked"
    status = 422
    exit_code = ExitCode.REFUSED
    remedy = "Unblock it with `waystation topic unblock NAME`."


class GroupRequiredError(InvalidInputError):
    """A message for a grouped topic has no group. No message of the request was produced."""

    code = "topic.group-required"
    status = 422
    remedy = (
        "Set `Waystation-Group`, `group` in a batch, or `partitionkey` in a CloudEvent;"
        " on the command line use --group, or --stdin with --group-by."
    )


class RateLimitedError(WaystationError):
    """The rate limit of the topic is exhausted. No message of the request was produced."""

    code = "topic.rate-limited"
    status = 429
    exit_code = ExitCode.UNAVAILABLE
    members = ("retry_after_s",)

    def __init__(self, message: str = "", *, hint: str = "", retry_after_s: int) -> None:
        super().__init__(message, hint=hint or f"Repeat the request in {retry_after_s} s.")
        #: Seconds after which the limit admits the request again.
        self.retry_after_s = retry_after_s


class SchemaInvalidError(InvalidInputError):
    """The JSON Schema for a topic is malformed or uses an unsupported feature."""

    code = "topic.schema-invalid"


class SchemaMismatchError(InvalidInputError):
    """A payload does not match the topic's schema. No message of the request was produced."""

    code = "topic.schema-mismatch"
    status = 422
    members = ("path", "position")

    def __init__(
        self, message: str = "", *, hint: str = "", field: str, path: str, position: int
    ) -> None:
        super().__init__(message, field=field, hint=hint)
        #: JSON Pointer into the payload; empty for the payload itself.
        self.path = path
        #: Index of the message in its batch, from 0.
        self.position = position


# -- Channels: the codes are those of DSPS -----------------------------------------------------


class ChannelError(WaystationError):
    """Base of the errors of channels."""

    code = "dsps.channel"
    status = 400


class InvalidChannelError(ChannelError):
    """The channel name is well-formed, but no channel rule allows it."""

    code = "dsps.storage.invalid-channel"
    exit_code = ExitCode.USAGE
    remedy = "Add a rule for the name to `channels.rules` in the settings of the server."


class ChannelFullError(ChannelError):
    """The channel stores as many messages as its rule allows. Nothing was published."""

    code = "channel.full"
    status = 507
    exit_code = ExitCode.UNAVAILABLE
    remedy = "Retry after some messages have expired, or raise `backlog_max` of its rule."


class SubscriberNotFoundError(ChannelError):
    """The subscriber was never created, was deleted, or has expired."""

    code = "dsps.storage.subscription-not-found"
    status = 404
    exit_code = ExitCode.NOT_FOUND
    remedy = "Create it with `waystation channel subscribe CHANNEL SUBSCRIBER`."


class AckHandleMalformedError(ChannelError):
    """The acknowledgement handle is malformed or belongs to another channel or subscriber."""

    code = "dsps.storage.ack-handle-malformed"
    exit_code = ExitCode.USAGE
    remedy = "Use the handle that `waystation channel fetch CHANNEL SUBSCRIBER` returned."


class MessageMalformedError(ChannelError):
    """The content of a message is not valid JSON. Nothing was published."""

    code = "dsps.storage.message-json-malformed"
    exit_code = ExitCode.USAGE


# -- Subscriptions -----------------------------------------------------------------------------


class SubscriptionNotFoundError(NotFoundError):
    """The subscription does not exist in the project."""

    code = "subscription.not-found"
    remedy = (
        "List subscriptions with `waystation subscription list`, or create it with"
        " `waystation subscription create`."
    )


class GroupMismatchError(InvalidInputError):
    """A grouped subscription was requested for a topic without groups. Nothing was written."""

    code = "subscription.group-mismatch"
    remedy = "Omit `grouped`, or create a topic with -o grouped=true."


class EndpointInvalidError(InvalidInputError):
    """The endpoint of a subscription is invalid. Nothing was written."""

    code = "subscription.endpoint-invalid"


class ShardsInvalidError(InvalidInputError):
    """The number of shards is outside its limits. Nothing was written."""

    code = "subscription.shards-invalid"


class NotParkedError(ConflictError):
    """The group or message to redrive has no dead letters. Nothing was written."""

    code = "subscription.not-parked"
    remedy = (
        "See the dead letters with `waystation subscription dead NAME`,"
        " and the reason with `waystation subscription why NAME`."
    )


class GroupCleanError(ConflictError):
    """The group to skip or purge has no pending message. Nothing was written."""

    code = "subscription.group-clean"
    remedy = "See groups with pending messages: `waystation subscription groups NAME`."


class OperationNotFoundError(NotFoundError):
    """The subscription has no such operation, or its record has expired."""

    code = "subscription.operation-not-found"
    remedy = "List operations with `waystation subscription operations NAME`."


class OperationEndedError(ConflictError):
    """The operation has ended, so it cannot be paused, resumed or cancelled."""

    code = "subscription.operation-ended"
    remedy = "See its result with `waystation subscription operations NAME ID`."


class ResetOutOfRangeError(InvalidInputError):
    """The subscription cannot be reset to that position. Nothing was written.

    The topic has no messages there, or the subscription's number of shards does not allow it to
    follow the growth of the topic from there.
    """

    code = "subscription.reset-out-of-range"
    remedy = "See the topic with `waystation topic show`; `--to beginning` is always possible."


class ShardFrozenError(ConflictError):
    """The shard is frozen and accepts no commits. Nothing was written."""

    code = "subscription.frozen"


class ShardLostError(ConflictError):
    """The shard is owned by another node or does not exist. Nothing was written."""

    code = "subscription.lease-lost"


# -- Pools -------------------------------------------------------------------------------------


class PoolNotFoundError(NotFoundError):
    """The pool does not exist in the project."""

    code = "pool.not-found"
    remedy = "List pools with `waystation pool list`, or create it with `waystation pool create`."


class PoolClosedError(ConflictError):
    """The pool is being deleted and accepts no message and no worker. Nothing was written."""

    code = "pool.closed"


class PoolFullError(BusyError):
    """The pool reached its limit of messages, bytes or keys. Nothing was written."""

    code = "pool.full"
    remedy = (
        "Raise `messages_max`, `keys_max` or `max_bytes` with `waystation pool change NAME -o …`."
    )


class PoolMirroredError(ConflictError):
    """Agents with the redis-events plugin serve the pool, so no other worker can register."""

    code = "pool.mirrored"


class PoolCannotAnswerError(InvalidInputError):
    """A client waits for an answer from a mirrored pool whose agents cannot answer."""

    code = "pool.cannot-answer"


class MirrorTakenError(ConflictError):
    """Agents of the store already serve another mirrored pool. Nothing was written."""

    code = "pool.mirror-taken"


class KeyInvalidError(InvalidInputError):
    """A recipient key is empty, too long or has characters that are not printable."""

    code = "pool.key-invalid"


class KeyBusyError(ConflictError):
    """The key has messages and cannot be deleted. Nothing was written."""

    code = "pool.key-busy"


class KeyTakenError(ConflictError):
    """A worker is processing a message of the key, so the key cannot move. Nothing was written."""

    code = "pool.key-taken"
    remedy = "Retry after the message is settled; see `waystation pool why NAME KEY`."


class WorkerUnknownError(NotFoundError):
    """The worker is not registered, or another session registered it. Register it again."""

    code = "pool.worker-unknown"
    remedy = "List workers with `waystation pool workers NAME`."


class WorkerEvictedError(ConflictError):
    """The worker sent no heartbeat while messages were pending, and its keys were reassigned.

    It receives keys again after it has registered again.
    """

    code = "pool.worker-evicted"


class WorkersFullError(BusyError):
    """The pool reached its limit of workers. Nothing was written."""

    code = "pool.workers-full"


class NotStaleError(ConflictError):
    """The worker sends heartbeats, so its keys are not reassigned. Nothing was written."""

    code = "pool.not-stale"


# -- Transactions and pipelines ----------------------------------------------------------------


class TransactionUnknownError(NotFoundError):
    """The transaction does not exist, or it belongs to another project."""

    code = "transaction.unknown"
    remedy = "List transactions with `waystation tx list`."


class AlreadyQueuedError(ConflictError):
    """A transaction with the given id is already queued. Nothing was written."""

    code = "transaction.already-queued"


class NotRunningError(ConflictError):
    """The transaction to complete is not running. Nothing was written."""

    code = "transaction.not-running"


class StatusInvalidError(InvalidInputError):
    """The status to complete a transaction with is not final. Nothing was written."""

    code = "transaction.status-invalid"


class IllegalTransitionError(ConflictError):
    """The transition table does not allow this change of state. Nothing was written."""

    code = "transaction.illegal-transition"
    members = ("from_state", "to_state")

    def __init__(
        self, message: str = "", *, hint: str = "", from_state: str, to_state: str
    ) -> None:
        text = message or f"A transaction cannot change from {from_state} to {to_state}."
        super().__init__(text, hint=hint)
        self.from_state = from_state
        self.to_state = to_state


class LeaseLostError(ConflictError):
    """Another worker has the lease of the transaction. Nothing was written."""

    code = "transaction.lease-lost"


class DuplicateTransactionError(ConflictError):
    """Another transaction, with a different pipeline or input, uses the external id."""

    code = "transaction.duplicate"
    remedy = "See it with `waystation tx get ID`, or start with another --external-id."
    members = ("existing_id",)

    def __init__(self, message: str = "", *, hint: str = "", existing_id: str) -> None:
        super().__init__(
            message or f"Transaction {existing_id} uses the external id.",
            hint=hint or f"See it with `waystation tx get {existing_id}`, or use another id.",
        )
        self.existing_id = existing_id


class TransactionFinalError(ConflictError):
    """The transaction has ended, so it cannot be woken, cancelled or given a switch."""

    code = "transaction.final"
    remedy = "See how it ended with `waystation why ID`."


class NotSleepingError(ConflictError):
    """The transaction to wake is not sleeping. `state` is its state."""

    code = "transaction.not-sleeping"
    remedy = "See what it does with `waystation why ID`."
    members = ("state",)

    def __init__(self, message: str = "", *, hint: str = "", state: str) -> None:
        super().__init__(message or f"The transaction is {state}, not sleeping.", hint=hint)
        self.state = state


class TransactionLoadingError(BusyError):
    """Another request is loading the transaction from the archive. The call can be repeated."""

    code = "transaction.loading"


class CallbackUnknownError(NotFoundError):
    """The callback URL was not issued by this system, or its transaction was deleted."""

    code = "callback.unknown"


class CallbackUsedError(ConflictError):
    """The callback was used before, or the step that issued it has ended. Nothing was written."""

    code = "callback.used"


class CallbackInvalidError(InvalidInputError):
    """The body of a callback is not valid JSON. The callback can be sent again."""

    code = "callback.invalid"
    status = 422


class SwitchInvalidError(InvalidInputError):
    """The name or the value of a switch is invalid. Nothing was written."""

    code = "transaction.switch-invalid"


class ReplyInvalidError(InvalidInputError):
    """A reply target is an invalid or forbidden URL, or an unknown channel or topic.

    The transaction was not started.
    """

    code = "transaction.reply-invalid"
    status = 422


class PipelineUnknownError(NotFoundError):
    """The pipeline, or the requested version of it, does not exist in the project."""

    code = "pipeline.unknown"
    remedy = "See `waystation pipeline list`, and its versions with `waystation pipeline show`."


class NotATypeError(InvalidInputError):
    """The pipeline exists, but only other pipelines may start it."""

    code = "pipeline.not-a-type"
    status = 422


class PipelineInvalidError(InvalidInputError):
    """The definition of a pipeline has no step, an unknown option or an invalid value."""

    code = "pipeline.invalid"


class AppInvalidError(SettingsError):
    """An app cannot be loaded: its module or name does not exist, or its code fails on import."""

    code = "app.invalid"


# -- ACA-Py: relay and deliverer ---------------------------------------------------------------


class EnvelopeInvalidError(InvalidInputError):
    """The body is not a DIDComm envelope with recipients. Nothing was enqueued."""

    code = "relay.envelope-invalid"


class MessageInvalidError(InvalidInputError):
    """An outbound message can never be delivered and becomes a dead letter with this text."""

    code = "deliverer.message-invalid"
    status = None


# -- History -----------------------------------------------------------------------------------


class HistoryError(WaystationError):
    """Base of the errors of history."""

    code = "history.error"
    status = None


class HistoryMissingError(SettingsError):
    """PySpark, pyarrow or deltalake is not installed. Raised only at start."""

    code = "history.missing"


class NoJavaError(SettingsError):
    """Spark needs Java 17 or newer, and the machine has none. Raised only at start."""

    code = "history.no-java"


class SourceOptionError(InvalidInputError):
    """An option of a Spark source is unknown, malformed or contains a secret."""

    code = "history.option-invalid"
    status = None


class QueryError(InvalidInputError):
    """Spark cannot parse or run a query of the lake."""

    code = "history.query"
    status = None


class SparkStartError(HistoryError):
    """Spark does not start. Its log has the reason."""

    code = "history.spark-start"


class SparkGoneError(HistoryError):
    """The Spark process ended during a job. The job can be started again without loss."""

    code = "history.spark-gone"


class ClusterResourcesError(HistoryError):
    """No worker of the Spark cluster has the memory and cores that an executor requests."""

    code = "history.cluster-resources"


class QueryStoppedError(HistoryError):
    """The process that keeps the Spark session of `history sql` was stopped during a query."""

    code = "history.query-stopped"
    remedy = "Run the query again: a new process starts."


class TaskFailedError(HistoryError):
    """A Spark task failed on every attempt. Nothing was committed."""

    code = "history.task-failed"


class TrimmedError(HistoryError):
    """Retention deleted messages before they were read, and the reader does not allow gaps."""

    code = "history.trimmed"


class StoreWentBackError(HistoryError):
    """A log ends before the position read earlier: the store was restored, or lost its tail."""

    code = "history.store-went-back"


class NoStoreError(HistoryError):
    """The store to read does not exist, or no server has used it yet. None was created."""

    code = "history.no-store"


class OtherDataSetError(HistoryError):
    """The store has a different data set than the named server. Nothing was read."""

    code = "history.other-data-set"


class LakeRefusedError(HistoryError):
    """A table of the lake belongs to another program, or a column has another type."""

    code = "history.lake-refused"


class NoLakeError(LakeRefusedError):
    """The lake does not exist at that location. Ingest creates it."""

    code = "history.no-lake"


class LakeDamagedError(HistoryError):
    """A file of the lake is missing or differs from the file that was written.

    Nothing was changed.
    """

    code = "history.lake-damaged"


class LakeWriteError(HistoryError):
    """The lake cannot be written: its disk is full, or permission is denied.

    No commit is incomplete.
    """

    code = "history.lake-write"


class PipelineOffError(HistoryError):
    """No process ingests: no server of this store runs the data pipeline."""

    code = "history.off"
    remedy = (
        "Start `waystation dev` or `waystation serve --history`, or ingest once with"
        " `waystation history ingest`."
    )


class IngestFailedError(HistoryError):
    """The data pipeline of a server fails. It retries, and nothing is lost."""

    code = "history.ingest-failed"


class HistoryBusyError(HistoryError):
    """Another process has the lease of the job, or committed first. Nothing was written."""

    code = "history.busy"
    exit_code = ExitCode.CONFLICT


# -- Classes by code ---------------------------------------------------------------------------

_BY_CODE: dict[str, type[WaystationError]] = {
    each.code: each
    for each in list(vars().values())
    if isinstance(each, type) and issubclass(each, WaystationError)
}


def class_for(code: str, status: int) -> type[WaystationError]:
    """Return the class of an error reply.

    The code selects the class. A reply without a known code, such as one of a proxy, is classified
    by its HTTP status.
    """
    if code in _BY_CODE:
        return _BY_CODE[code]
    if status in (401, 403):
        return UnauthenticatedError
    if status == 404:
        return NotFoundError
    # A proxy sent 502 or 504, or the server failed: the request may have been carried out.
    return StationUnreachableError if status >= 500 else InvalidInputError
