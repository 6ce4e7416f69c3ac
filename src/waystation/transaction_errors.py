"""The errors of transactions and pipelines; the tree that they belong to is in `errors.py`."""

from __future__ import annotations

from waystation.errors import (
    BusyError,
    ConflictError,
    InvalidInputError,
    NotFoundError,
    SettingsError,
)


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
