"""The verbs of transactions for the asynchronous client.

To look, to wait and to set a switch is tried again when the station is away for a moment. So is a
start with an external id: the station knows it again. A start without one is not repeated, since
there could then be two; its outcome is unknown when the station is lost meanwhile.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any
from urllib.parse import quote, urlencode

from waystation.client.async_caller import AsyncCaller
from waystation.client.async_transport import AsyncTransport
from waystation.client.messages import decode_answer
from waystation.client.replies import ReplyCount, ReplyStanding
from waystation.client.transactions import (
    Cancelled,
    Children,
    Journal,
    Reason,
    Scalar,
    Switched,
    TransactionInfo,
    TransactionPage,
    TransactionSummary,
    When,
    encode_body,
    encode_moment,
    encode_order,
    wait_seconds,
)
from waystation.errors import StationUnreachableError, TransactionUnknownError
from waystation.runtime.clock import Clock
from waystation.runtime.durations import Duration

_PATH = "/v1/transactions"
#: What one request waits at most; longer waits take several.
_WAIT_SECONDS_MAX = 30.0
#: Before it is asked again, when a station had to end a wait early.
_PAUSE_SECONDS = 0.1


class AsyncTransaction:
    """A transaction that was started, or is there."""

    def __init__(self, transactions: AsyncTransactions, summary: TransactionSummary) -> None:
        self._transactions = transactions
        self.id = summary.id
        #: As it was when it was last looked at.
        self.summary = summary

    def __repr__(self) -> str:
        return f"<Transaction {self.id} [{self.summary.status}]>"

    @property
    def duplicate(self) -> bool:
        """Whether its start was known already."""
        return self.summary.duplicate

    async def get(self) -> TransactionSummary:
        """How it stands now."""
        self.summary = await self._transactions.get(self.id)
        return self.summary

    async def wait(
        self, at_most: Duration = "30s", *, progress: Callable[[Any], object] | None = None
    ) -> TransactionSummary:
        """How it stands when it has ended, or after so long; `ended` tells which.

        `progress` is called with each new report; of several at once with the newest.
        """
        self.summary = await self._transactions.wait(self.id, at_most, progress=progress)
        return self.summary

    async def set_switch(self, name: str, value: Scalar) -> Switched:
        """Sets a switch; the step that waits for it goes on."""
        return await self._transactions.set_switch(self.id, name, value)

    async def delete_switch(self, name: str) -> Switched:
        """Deletes a switch, which is a change, too."""
        return await self._transactions.delete_switch(self.id, name)

    async def cancel(self, cause: str = "") -> Cancelled:
        """Cancels it: at once, or, if it runs, at its next commit."""
        return await self._transactions.cancel(self.id, cause)

    async def wake(self) -> None:
        """Wakes it before its time."""
        await self._transactions.wake(self.id)

    async def journal(self) -> Journal:
        """What happened, step by step."""
        return await self._transactions.journal(self.id)

    async def children(self) -> Children:
        """The children of its Parallel, if one is under way."""
        return await self._transactions.children(self.id)

    async def webhook(self) -> ReplyStanding:
        """Whether its client was told, what is on its way, and the newest attempts."""
        return await self._transactions.webhook(self.id)

    async def why(self) -> Reason:
        """What it waits for, or has ended with."""
        return await self._transactions.why(self.id)


class AsyncTransactions:
    """Start transactions, look at them, wait for them, reach them."""

    def __init__(self, transport: AsyncTransport) -> None:
        self._transport = transport
        self._caller = AsyncCaller(transport)
        self._clock = Clock()

    async def start(
        self,
        type: str,  # noqa: A002 (so it is called)
        data: Any = None,
        *,
        external_id: str = "",
        metadata: Mapping[str, Any] | None = None,
        start_at: When | None = None,
        deadline: When | None = None,
    ) -> AsyncTransaction:
        """Starts a transaction of a type, which is the name of a pipeline.

        With an external id there is one transaction, however often it is started; another type or
        other data is a DuplicateTransactionError that has the `existing_id`.
        """
        body = encode_order(
            type,
            data,
            external_id=external_id,
            metadata=metadata,
            start_at=start_at,
            deadline=deadline,
        )
        repeatable = bool(external_id or (metadata or {}).get("externalId"))
        answer = await self._caller.call("POST", _PATH, body=body, repeatable=repeatable)
        return AsyncTransaction(self, decode_answer(answer, TransactionSummary))

    async def open(self, transaction_id: str) -> AsyncTransaction:
        """A transaction that is there already."""
        return AsyncTransaction(self, await self.get(transaction_id))

    async def get(self, transaction_id: str) -> TransactionSummary:
        """How a transaction stands."""
        answer = await self._caller.call("GET", _path(transaction_id))
        return decode_answer(answer, TransactionSummary)

    async def by_external_id(self, external_id: str) -> AsyncTransaction:
        """The transaction that has an external id, or the newest that had it."""
        if "/" in external_id or external_id in (".", ".."):
            # Such a one cannot stand in a path.
            async for each in self.list(external_id=external_id):
                return await self.open(each.id)
            raise TransactionUnknownError("No transaction has this external id.")
        answer = await self._caller.call("GET", _path("by-external-id", external_id))
        return AsyncTransaction(self, decode_answer(answer, TransactionSummary))

    async def wait(
        self,
        transaction_id: str,
        at_most: Duration = "30s",
        *,
        progress: Callable[[Any], object] | None = None,
    ) -> TransactionSummary:
        """How it stands when it has ended, or after so long; `ended` tells which.

        `progress` is called with each new report; of several at once with the newest. A station
        that is away is waited for, too.
        """
        until = self._clock.monotonic() + wait_seconds(at_most)
        after, told = "&after=0" if progress is not None else "", b"null"
        while True:
            begun, news = self._clock.monotonic(), False
            left = max(0.0, until - begun)
            patience = min(left, _WAIT_SECONDS_MAX)
            path = f"{_path(transaction_id)}?wait={round(patience * 1000)}ms{after}"
            try:
                answer = await self._caller.call("GET", path, patience=patience)
            except StationUnreachableError:
                if self._clock.monotonic() >= until:
                    raise
            else:
                summary = decode_answer(answer, TransactionSummary)
                if progress is not None:
                    after = f"&after={summary.metadata.sequence_of_update}"
                    report = bytes(summary.progress_report)
                    news = report not in (told, b"null")
                    if news:
                        told = report
                        progress(summary.progress)
                if summary.ended or self._clock.monotonic() >= until:
                    return summary
            if not news and self._clock.monotonic() - begun < _PAUSE_SECONDS:
                await self._transport.sleep(_PAUSE_SECONDS)

    async def set_switch(self, transaction_id: str, name: str, value: Scalar) -> Switched:
        """Sets a switch; the step that waits for it goes on. The same value changes nothing."""
        body = encode_body({"value": value}, field="value")
        answer = await self._caller.call("PUT", _switch(transaction_id, name), body=body)
        return decode_answer(answer, Switched)

    async def delete_switch(self, transaction_id: str, name: str) -> Switched:
        """Deletes a switch, which is a change, too."""
        answer = await self._caller.call("DELETE", _switch(transaction_id, name))
        return decode_answer(answer, Switched)

    async def cancel(self, transaction_id: str, cause: str = "") -> Cancelled:
        """Cancels: at once, or, what runs, at its next commit."""
        query = f"?{urlencode({'cause': cause})}" if cause else ""
        answer = await self._caller.call("POST", f"{_path(transaction_id)}/cancel{query}")
        return decode_answer(answer, Cancelled)

    async def wake(self, transaction_id: str) -> None:
        """Wakes what sleeps before its time; NotSleepingError for what does not."""
        await self._caller.call("POST", f"{_path(transaction_id)}/wake", repeatable=False)

    async def journal(self, transaction_id: str) -> Journal:
        """What happened, step by step."""
        answer = await self._caller.call("GET", f"{_path(transaction_id)}/journal")
        return decode_answer(answer, Journal)

    async def children(self, transaction_id: str) -> Children:
        """The children of the Parallel that is under way."""
        answer = await self._caller.call("GET", f"{_path(transaction_id)}/children")
        return decode_answer(answer, Children)

    async def why(self, transaction_id: str) -> Reason:
        """What it waits for, or has ended with; the code is `unknown` for one that is not there."""
        answer = await self._caller.call("GET", f"/v1/why/{quote(transaction_id, safe='')}")
        return decode_answer(answer, Reason)

    async def webhook(self, transaction_id: str) -> ReplyStanding:
        """Whether its client was told, what is on its way, and the newest attempts."""
        answer = await self._caller.call("GET", _path(transaction_id, "webhook"))
        return decode_answer(answer, ReplyStanding)

    async def redrive_webhook(self, transaction_id: str) -> int:
        """Sends again what was given up of its replies; returns how many."""
        answer = await self._caller.call("POST", _path(transaction_id, "webhook", "redrive"))
        return decode_answer(answer, ReplyCount).count

    async def discard_webhook(self, transaction_id: str) -> int:
        """Forgets what waits and what was given up of its replies; returns how many."""
        answer = await self._caller.call("DELETE", _path(transaction_id, "webhook"))
        return decode_answer(answer, ReplyCount).count

    async def list(
        self, *, state: str = "", pipeline: str = "", external_id: str = ""
    ) -> AsyncIterator[TransactionInfo]:
        """Yields transactions of the project, in no order; each at least once.

        What has ended leaves this list after a while; `archived` has it then.
        """
        query = {"state": state, "pipeline": pipeline, "external_id": external_id}
        async for each in self._pages(query):
            yield each

    async def archived(
        self, *, status: str = "", pipeline: str = "", since: When | None = None
    ) -> AsyncIterator[TransactionInfo]:
        """Yields what the archive has, newest change first; without a status, what has ended.

        Several statuses have commas between them; since when, or how long ago.
        """
        query = {"archived": "true", "status": status, "pipeline": pipeline}
        if since is not None:
            query["since"] = str(encode_moment(since, field="since"))
        async for each in self._pages(query):
            yield each

    async def _pages(self, asked: dict[str, str]) -> AsyncIterator[TransactionInfo]:
        query = {name: value for name, value in asked.items() if value}
        while True:
            answer = await self._caller.call("GET", f"{_PATH}?{urlencode(query)}")
            page = decode_answer(answer, TransactionPage)
            for each in page.transactions:
                yield each
            if not page.cursor:
                return
            query["cursor"] = page.cursor


def _path(*parts: str) -> str:
    return "/".join([_PATH, *(quote(each, safe="") for each in parts)])


def _switch(transaction_id: str, name: str) -> str:
    return f"{_path(transaction_id)}/switches/{quote(name, safe='')}"
