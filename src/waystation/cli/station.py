"""The station that a command speaks to, with errors that say what to do next."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from waystation import errors

if TYPE_CHECKING:
    from waystation.client import Waystation

#: What happened, if the station's own words are for programs, and what a person can do.
_ADVICE: tuple[tuple[type[errors.WaystationError], str, str], ...] = (
    (
        errors.SubscriberNotFoundError,
        "There is no such subscriber: never created, deleted, or expired.",
        "Create it with `waystation channel subscribe CHANNEL SUBSCRIBER`.",
    ),
    (
        errors.ChannelFullError,
        "The channel is full: it keeps as many messages as its rule allows.",
        "Try again when some have expired, or raise backlog_max of its rule.",
    ),
    (
        errors.InvalidChannelError,
        "No rule of the station allows a channel of that name.",
        "See channels.rules in the station's settings.",
    ),
    (
        errors.TopicNotFoundError,
        "",
        "See which there are with `waystation topic list`, or make it: `waystation topic create`.",
    ),
    (
        errors.TopicBlockedError,
        "",
        "Let it take messages again with `waystation topic unblock`.",
    ),
    (
        errors.GroupRequiredError,
        "The topic is grouped: every message needs a group.",
        "Give it with --group, or with --stdin and --group-by.",
    ),
    (
        errors.LogFullError,
        "",
        "Raise max_bytes of the topic, or let its readers go on.",
    ),
    (
        errors.SubscriptionNotFoundError,
        "",
        "See which there are: `waystation subscription list`; or make it: `… subscription create`.",
    ),
    (
        errors.GroupMismatchError,
        "",
        "Leave grouped out, or make a topic with -o grouped=true.",
    ),
    (
        errors.NotParkedError,
        "",
        "See what is with `waystation subscription dead NAME`, and why with `… why NAME`.",
    ),
    (
        errors.GroupCleanError,
        "",
        "Nothing waits in it. See those that do: `waystation subscription groups NAME`.",
    ),
    (
        errors.OperationNotFoundError,
        "",
        "See which are remembered: `waystation subscription operations NAME`.",
    ),
    (
        errors.OperationEndedError,
        "",
        "See how it has ended: `waystation subscription operations NAME ID`.",
    ),
    (
        errors.ResetOutOfRangeError,
        "",
        "See what the topic has with `waystation topic show`; `--to beginning` always works.",
    ),
    (
        errors.PoolNotFoundError,
        "",
        "See which there are: `waystation pool list`; or make it: `waystation pool create`.",
    ),
    (
        errors.WorkerUnknownError,
        "",
        "See which there are: `waystation pool workers NAME`.",
    ),
    (
        errors.PoolFullError,
        "",
        "Raise messages_max, keys_max or max_bytes: `waystation pool change NAME -o …`.",
    ),
    (
        errors.KeyTakenError,
        "",
        "Try again when it is settled; see it with `waystation pool why NAME KEY`.",
    ),
    (
        errors.PipelineUnknownError,
        "",
        "See which there are: `waystation pipeline list`; versions: `waystation pipeline show`.",
    ),
    (
        errors.TransactionUnknownError,
        "",
        "See which there are with `waystation tx list`.",
    ),
    (
        errors.DuplicateTransactionError,
        "",
        "Look at it with `waystation tx get ID`, or start with another --external-id.",
    ),
    (
        errors.TransactionFinalError,
        "",
        "See how it has ended with `waystation why ID`.",
    ),
    (
        errors.NotSleepingError,
        "",
        "See what it does with `waystation why ID`.",
    ),
    (
        errors.AckHandleMalformedError,
        "That is no handle of this subscriber.",
        "Take it from a fetch: `waystation channel fetch CHANNEL SUBSCRIBER`.",
    ),
    (
        errors.UnauthenticatedError,
        "The station asks for a key that may do this.",
        "Make one with `waystation keys create`, and set WAYSTATION_KEY to it.",
    ),
    (
        errors.ForbiddenError,
        "",
        "Use a key of scope {scope}: `waystation keys create --scope {scope}`.",
    ),
    (
        errors.StationUnreachableError,
        "",
        "Is it running? Start one with `waystation dev`, or name yours with --url.",
    ),
)


@contextmanager
def open_station(url: str, key: str, *, scope: str = "write") -> Iterator[Waystation]:
    """A client for the length of the block, which needs a key of `scope` at most."""
    from waystation.client import Waystation  # noqa: PLC0415 (help must not wait for HTTP libraries)

    with Waystation(url, key=key) as station:
        try:
            yield station
        except errors.WaystationError as error:
            for kind, happened, advice in _ADVICE:
                if isinstance(error, kind) and not error.hint:
                    error.message = happened or error.message
                    error.hint = advice.format(scope=scope)
            raise
