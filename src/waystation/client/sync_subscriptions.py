"""The verbs of subscriptions for the ordinary client.

To look and to wait is tried again when the station is away for a moment. Verbs that change
something are not repeated: their outcome is unknown when the station is lost meanwhile, and a look
tells.
"""

# Generated from async_subscriptions.py by scripts/generate.py; change that one.

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any, Literal, Unpack
from urllib.parse import urlencode

from waystation.client.messages import Answer, decode_answer
from waystation.client.subscription_requests import (
    PATH,
    path_of,
    query_of,
    selection_of,
    start_of,
    time_ms,
    times_of,
)
from waystation.client.subscriptions import (
    DeadLetter,
    DeadLetterPage,
    Explanation,
    GroupInfo,
    GroupPage,
    GroupStanding,
    OperationInfo,
    OperationPage,
    RotatedSecret,
    Sample,
    Start,
    Subscription,
    SubscriptionOptions,
    SubscriptionPage,
    SubscriptionStanding,
)
from waystation.client.sync_caller import Caller
from waystation.client.sync_operations import Operation, Operations
from waystation.client.sync_transport import Transport
from waystation.client.sync_waiting import Waiting
from waystation.errors import ConflictError, WaitTimeoutError
from waystation.runtime.durations import Duration
from waystation.runtime.ids import require_name
from waystation.runtime.json_values import encode_json

_PAGE = 1000
#: What an endpoint gets to answer a sample.
_SAMPLE_SECONDS_MAX = 60.0


class Subscriptions:
    """Define subscriptions, see how they stand, and operate on what they could not deliver."""

    def __init__(self, transport: Transport) -> None:
        self._caller = Caller(transport)
        self._waiting = Waiting(transport)
        self._operations = Operations(transport)

    # -- Definitions -------------------------------------------------------------------------

    def create(
        self,
        name: str,
        *,
        topic: str,
        endpoint: str,
        shards: int | None = None,
        start: Start = "end",
        **options: Unpack[SubscriptionOptions],
    ) -> Subscription:
        """Creates a subscription, which delivers from then on; ConflictError when there is one.

        What it returns has the secret that signs its requests.
        """
        body: dict[str, Any] = {
            "name": require_name(name, field="name"),
            "topic": topic,
            "endpoint": endpoint,
            "from": start_of(start, field="start"),
            "options": options,
        }
        if shards is not None:
            body["shards"] = shards
        return decode_answer(self._post(PATH, body), Subscription)

    def get(self, name: str) -> Subscription:
        """The subscription as it is."""
        return decode_answer(self._caller.call("GET", path_of(name)), Subscription)

    def list(self) -> Iterator[Subscription]:
        """Yields the subscriptions of the project by name."""
        cursor = ""
        while True:
            query = urlencode({"limit": _PAGE, "cursor": cursor})
            answer = self._caller.call("GET", f"{PATH}?{query}")
            page = decode_answer(answer, SubscriptionPage)
            for each in page.subscriptions:
                yield each
            cursor = page.cursor
            if not cursor:
                return

    def change(
        self,
        name: str,
        *,
        version: int | None = None,
        endpoint: str | None = None,
        **options: Unpack[SubscriptionOptions],
    ) -> Subscription:
        """Changes the options that are named, of `retry` those of it; the others stay.

        ConflictError if another changes it meanwhile, or has changed it since `version`.
        """
        now = self.get(name)
        if version is not None and now.version != version:
            raise ConflictError(f"Subscription {name} has version {now.version}, not {version}.")
        changed: dict[str, Any] = {**now.options, **options}
        if "retry" in options:
            changed["retry"] = {**now.options.get("retry", {}), **options["retry"]}
        # The version that the other options were read from, so that none of them is undone.
        body: dict[str, Any] = {"version": now.version, "options": changed}
        if endpoint is not None:
            body["endpoint"] = endpoint
        sent = encode_json(body)
        answer = self._caller.call("PUT", path_of(name), body=sent, repeatable=False)
        return decode_answer(answer, Subscription)

    def delete(self, name: str) -> None:
        """Deletes a subscription with its retries and dead letters."""
        self._caller.call("DELETE", path_of(name), repeatable=False)

    def pause(self, name: str, *, until: datetime | None = None, reason: str = "") -> Subscription:
        """Stops delivering, until a time or until it is resumed."""
        body: dict[str, Any] = {"reason": reason}
        if until is not None:
            body["until"] = time_ms(until, field="until")
        return decode_answer(self._post(f"{path_of(name)}/pause", body), Subscription)

    def resume(self, name: str) -> Subscription:
        """Delivers again."""
        return decode_answer(self._post(f"{path_of(name)}/resume"), Subscription)

    def test(self, name: str) -> Sample:
        """Sends one made-up message to its endpoint; request and reply."""
        answer = self._caller.call(
            "POST", f"{path_of(name)}/test", patience=_SAMPLE_SECONDS_MAX, repeatable=False
        )
        return decode_answer(answer, Sample)

    def rotate_secret(self, name: str) -> str:
        """Puts a new signing secret in force, and returns it; the one before signs for a day."""
        answer = self._post(f"{path_of(name)}/secret/rotate")
        return decode_answer(answer, RotatedSecret).secret

    # -- Looking -----------------------------------------------------------------------------

    def shards(self, name: str) -> SubscriptionStanding:
        """How it stands: state, lag, retries and dead letters, over all and by shard."""
        answer = self._look(name, "shards", {})
        return decode_answer(answer, SubscriptionStanding)

    def groups(
        self,
        name: str,
        *,
        state: Literal["retrying", "parked", "redriving"] | None = None,
    ) -> Iterator[GroupInfo]:
        """Yields the groups that are not clean; of one state if asked. Each at least once."""
        query = {"limit": str(_PAGE), "state": state or "", "cursor": ""}
        while True:
            answer = self._look(name, "groups", query)
            page = decode_answer(answer, GroupPage)
            for each in page.groups:
                yield each
            query["cursor"] = page.cursor
            if not page.cursor:
                return

    def group(self, name: str, group: str) -> GroupStanding:
        """A group as it is, with the message that all others of it wait for."""
        answer = self._caller.call("GET", f"{path_of(name)}/group?{query_of({'group': group})}")
        return decode_answer(answer, GroupStanding)

    def wait(
        self,
        name: str,
        *,
        group: str,
        state: Literal["clean", "retrying", "parked", "redriving"],
        at_most: Duration = "5m",
    ) -> GroupStanding:
        """Wait until the group is in `state` and return it.

        Raise WaitTimeoutError if that takes longer than `at_most`.
        """
        wanted = {"group": group, "state": state}
        for answer in self._waiting.answers(f"{path_of(name)}/group", wanted, at_most):
            found = decode_answer(answer, GroupStanding)
            if found.state == state:
                return found
        raise WaitTimeoutError(
            f"Group {group[:80]!r} is {found.state}, not {state}, after {at_most}.", last=found
        )

    def dead_letters(
        self,
        name: str,
        *,
        group: str = "",
        failed_after: datetime | None = None,
        failed_before: datetime | None = None,
        cause: str = "",
        payload: bool = False,
    ) -> Iterator[DeadLetter]:
        """Yields dead letters, shard after shard, the oldest failure first.

        Of a group all that it has, in order; else the heads of groups, and what stands alone.
        `cause`: a status code, the name of a failure, or words of the cause. With `payload` each
        has its `message`.
        """
        query = {"group": group, "cause": cause, "payload": "true" if payload else ""}
        times = times_of(failed_after, failed_before)
        query |= {name: str(value) for name, value in times.items()}
        while True:
            answer = self._look(name, "dead-letters", query)
            page = decode_answer(answer, DeadLetterPage)
            for each in page.dead_letters:
                yield each
            query["cursor"] = page.cursor
            if not page.cursor:
                return

    def why(
        self, name: str, *, group: str = "", message: str = "", shard: int | None = None
    ) -> Explanation:
        """Why a message, a group, a shard, or the subscription as a whole, does not get on.

        With its group a message is found faster.
        """
        query = {"group": group, "message": message}
        query["shard"] = "" if shard is None else str(shard)
        answer = self._look(name, "why", query)
        return decode_answer(answer, Explanation)

    # -- Operations --------------------------------------------------------------------------

    def redrive(
        self,
        name: str,
        *,
        group: str = "",
        message: str = "",
        failed_after: datetime | None = None,
        failed_before: datetime | None = None,
        rate: float | None = None,
        dry_run: bool = False,
    ) -> Operation:
        """Delivers dead letters again: of a group, up to a message of one, of a time, or all.

        `rate`: messages in a second. With `dry_run` they are counted, and nothing is done.
        """
        times = times_of(failed_after, failed_before)
        asked = selection_of(group, message, times, rate=rate, dry_run=dry_run)
        return self._operations.begin(name, "redrive", asked)

    def skip(self, name: str, *, group: str) -> Operation:
        """Settles the head of a group without delivering it; the others are delivered then."""
        return self._operations.begin(name, "skip", {"group": group})

    def purge(
        self,
        name: str,
        *,
        group: str = "",
        message: str = "",
        failed_after: datetime | None = None,
        failed_before: datetime | None = None,
        rate: float | None = None,
        dry_run: bool = False,
    ) -> Operation:
        """Settles dead letters for good; of a named group also what waits in retry."""
        times = times_of(failed_after, failed_before)
        asked = selection_of(group, message, times, rate=rate, dry_run=dry_run)
        return self._operations.begin(name, "purge", asked)

    def reset(self, name: str, *, to: Start) -> Operation:
        """Delivers the topic anew from somewhere; what is in retry comes first."""
        return self._operations.begin(name, "reset", {"to": start_of(to, field="to")})

    def operations(self, name: str) -> Iterator[OperationInfo]:
        """Yields the operations that are remembered, the newest first."""
        query = {"limit": "100", "cursor": ""}
        while True:
            answer = self._look(name, "operations", query)
            page = decode_answer(answer, OperationPage)
            for each in page.operations:
                yield each
            query["cursor"] = page.cursor
            if not page.cursor:
                return

    def operation(self, name: str, operation: str) -> Operation:
        """An operation that is there already."""
        return self._operations.open(name, operation)

    def _look(self, name: str, what: str, query: dict[str, str]) -> Answer:
        return self._caller.call("GET", f"{path_of(name)}/{what}?{query_of(query)}")

    def _post(self, path: str, content: dict[str, Any] | None = None) -> Answer:
        body = None if content is None else encode_json(content)
        return self._caller.call("POST", path, body=body, repeatable=False)
