"""The verbs of pools for the asynchronous client.

To look, and to send under an id, is tried again when the station is away for a moment. Verbs that
change a definition are not repeated: their outcome is unknown when the station is lost meanwhile,
and a look tells.
"""

from __future__ import annotations

import builtins
import dataclasses
from collections.abc import AsyncIterator, Sequence
from typing import Any, Unpack
from urllib.parse import urlencode

from waystation.client.async_background import AsyncHandler
from waystation.client.async_caller import AsyncCaller
from waystation.client.async_pool_worker import AsyncPoolWorker
from waystation.client.async_transport import AsyncTransport
from waystation.client.codec import Codec
from waystation.client.messages import decode_answer
from waystation.client.parcels import Headers, NewMessage
from waystation.client.pools import (
    BATCH_FORM,
    BATCH_MAX,
    PATH,
    Assigned,
    Count,
    Drained,
    Pool,
    PoolDeadLetter,
    PoolDeadLetterPage,
    PoolKey,
    PoolKeyPage,
    PoolOptions,
    PoolPage,
    PoolReason,
    PoolStanding,
    Sent,
    SentBatch,
    batch_of,
    not_sent,
    path_of,
    selection_of,
)
from waystation.errors import ConflictError, PoolFullError
from waystation.runtime.durations import Duration, duration_ms
from waystation.runtime.ids import RandomIds, require_name
from waystation.runtime.json_values import encode_json

_PAGE = 1000


class AsyncPools:
    """Define pools, send to recipient keys, see who has which, and work."""

    def __init__(self, transport: AsyncTransport) -> None:
        self._transport = transport
        self._caller = AsyncCaller(transport)
        self._identity = RandomIds()

    # -- Definitions -------------------------------------------------------------------------

    async def create(self, name: str, **options: Unpack[PoolOptions]) -> Pool:
        """Creates a pool; ConflictError when there is one."""
        body = {"name": require_name(name, field="name"), "options": options}
        sent = encode_json(body)
        answer = await self._caller.call("POST", PATH, body=sent, repeatable=False)
        return decode_answer(answer, Pool)

    async def get(self, name: str) -> Pool:
        """The pool as it is."""
        return decode_answer(await self._caller.call("GET", path_of(name)), Pool)

    async def list(self) -> AsyncIterator[Pool]:
        """Yields the pools of the project by name."""
        cursor = ""
        while True:
            query = urlencode({"limit": _PAGE, "cursor": cursor})
            page = decode_answer(await self._caller.call("GET", f"{PATH}?{query}"), PoolPage)
            for each in page.pools:
                yield each
            cursor = page.cursor
            if not cursor:
                return

    async def change(
        self, name: str, *, version: int | None = None, **options: Unpack[PoolOptions]
    ) -> Pool:
        """Changes the options that are named; the others stay.

        ConflictError if another changes it meanwhile, or has changed it since `version`.
        """
        now = await self.get(name)
        if version is not None and now.version != version:
            raise ConflictError(f"Pool {name} has version {now.version}, not {version}.")
        # The version that the other options were read from, so that none of them is undone.
        body = {"version": now.version, "options": {**now.options, **options}}
        sent = encode_json(body)
        answer = await self._caller.call("PUT", path_of(name), body=sent, repeatable=False)
        return decode_answer(answer, Pool)

    async def delete(self, name: str) -> None:
        """Deletes a pool with its workers, messages and dead letters."""
        await self._caller.call("DELETE", path_of(name), repeatable=False)

    # -- Sending -----------------------------------------------------------------------------

    async def send(
        self,
        pool: str,
        key: str,
        data: Any,
        *,
        id: str = "",  # noqa: A002
        content_type: str | None = None,
        headers: Headers = (),
        cause: str | None = None,
        wait: Duration | None = None,
    ) -> Sent:
        """Sends one message to a recipient key; it is durable when this returns.

        With `wait` the worker's answer is waited for that long. PoolFullError: there is no room.
        """
        message = NewMessage(
            data, id=id, content_type=content_type, headers=tuple(_pairs(headers)), cause=cause
        )
        body = batch_of([(key, message)], self._identity)
        path, patience = path_of(pool, "messages"), 0.0
        if wait is not None:
            patience = duration_ms(wait, field="wait") / 1000
            path += f"?wait={round(patience * 1000)}ms"
        answer = await self._caller.call(
            "POST", path, body=body, patience=patience, content_type=BATCH_FORM
        )
        return decode_answer(answer, SentBatch).results[0]

    async def send_many(
        self, pool: str, messages: Sequence[tuple[str, Any | NewMessage]]
    ) -> builtins.list[Sent]:
        """Sends messages to their recipient keys, in their order; each has a result.

        What found no room has the outcome `full`, also where nothing did.
        """
        results: builtins.list[Sent] = []
        made = [
            (key, each if isinstance(each, NewMessage) else NewMessage(each))
            for key, each in messages
        ]
        named = [
            (key, each if each.id else _with_id(each, self._identity.token(16)))
            for key, each in made
        ]
        for first in range(0, len(named), BATCH_MAX):
            some = named[first : first + BATCH_MAX]
            body, path = batch_of(some, self._identity), path_of(pool, "messages")
            try:
                answer = await self._caller.call("POST", path, body=body, content_type=BATCH_FORM)
            except PoolFullError:
                results += [not_sent(each.id) for _, each in some]
            else:
                results += decode_answer(answer, SentBatch).results
        return results

    # -- Looking -----------------------------------------------------------------------------

    async def workers(self, name: str) -> PoolStanding:
        """What waits in a pool, and each worker with its state, load and last access."""
        answer = await self._caller.call("GET", path_of(name, "workers"))
        return decode_answer(answer, PoolStanding)

    async def map(self, name: str, *, worker: str = "") -> AsyncIterator[PoolKey]:
        """Yields keys with their workers; of one if asked, `-`: those without. In no order.

        One that is there all the time comes at least once.
        """
        query = {"limit": str(_PAGE), "worker": worker, "cursor": ""}
        while True:
            path = f"{path_of(name, 'map')}?{urlencode(query)}"
            page = decode_answer(await self._caller.call("GET", path), PoolKeyPage)
            for each in page.keys:
                yield each
            query["cursor"] = page.cursor
            if not page.cursor:
                return

    async def why(self, name: str, key: str) -> PoolReason:
        """Who has a key, and why what waits for it waits."""
        path = f"{path_of(name, 'why')}?{urlencode({'key': key})}"
        return decode_answer(await self._caller.call("GET", path), PoolReason)

    async def dead_letters(self, name: str) -> AsyncIterator[PoolDeadLetter]:
        """Yields dead letters, the oldest failure first."""
        cursor = ""
        while True:
            path = f"{path_of(name, 'dead-letters')}?{urlencode({'cursor': cursor})}"
            page = decode_answer(await self._caller.call("GET", path), PoolDeadLetterPage)
            for each in page.dead_letters:
                yield each
            cursor = page.cursor
            if not page.dead_letters:
                return

    # -- Operating ---------------------------------------------------------------------------

    async def assign(self, name: str, key: str, *, worker: str = "") -> str:
        """Gives a key a worker, or the one that is named; who has it then."""
        path = f"{path_of(name, 'keys')}?{urlencode({'key': key})}"
        body = encode_json({"uid": worker})
        return decode_answer(await self._caller.call("PUT", path, body=body), Assigned).owner

    async def forget(self, name: str, key: str) -> None:
        """Forgets a key without messages."""
        path = f"{path_of(name, 'keys')}?{urlencode({'key': key})}"
        await self._caller.call("DELETE", path)

    async def drain(self, name: str, worker: str) -> int:
        """Drains a worker from outside; how many messages it still has."""
        path = path_of(name, "workers", require_name(worker, field="worker"), "drain")
        return decode_answer(await self._caller.call("POST", path, body=b"{}"), Drained).taken

    async def evict(self, name: str, worker: str) -> int:
        """Gives the keys of a worker to others at once; how many."""
        path = path_of(name, "workers", require_name(worker, field="worker"), "evict")
        return decode_answer(await self._caller.call("POST", path), Count).count

    async def redrive(self, name: str, numbers: Sequence[int] | None = None) -> int:
        """Sends dead letters again, those that are named or all; how many."""
        return await self._on_dead_letters(name, "redrive", numbers)

    async def purge(self, name: str, numbers: Sequence[int] | None = None) -> int:
        """Deletes dead letters, those that are named or all; how many."""
        return await self._on_dead_letters(name, "purge", numbers)

    async def _on_dead_letters(self, name: str, verb: str, numbers: Sequence[int] | None) -> int:
        path, body = path_of(name, "dead-letters", verb), selection_of(numbers)
        answer = await self._caller.call("POST", path, body=body, repeatable=False)
        return decode_answer(answer, Count).count

    # -- Working -----------------------------------------------------------------------------

    def worker(
        self,
        pool: str,
        handler: AsyncHandler,
        *,
        concurrency: int = 16,
        uid: str = "",
        grace: Duration = "30s",
        codec: Codec | None = None,
    ) -> AsyncPoolWorker:
        """A worker that hands each message to `handler`, one of a key at a time, in order.

            async with ws.pools.worker("orders", handle) as worker:
                await worker.run()

        It drains when the block is left: what is begun gets `grace` to end.
        """
        return AsyncPoolWorker(
            self._transport,
            pool,
            handler,
            concurrency=concurrency,
            uid=uid,
            grace_seconds=duration_ms(grace, field="grace") / 1000,
            codec=codec,
        )


def _pairs(headers: Headers) -> Sequence[tuple[str, str]]:
    return tuple(headers.items() if hasattr(headers, "items") else headers)


def _with_id(message: NewMessage, message_id: str) -> NewMessage:
    return dataclasses.replace(message, id=message_id)
