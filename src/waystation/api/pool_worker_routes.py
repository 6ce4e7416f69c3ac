"""The routes of workers: what they say to their pool, and what they are given.

Everything that a worker says can be said again after a lost reply: a registration has a nonce, a
take has a token, and an ack or nack names the message by its number.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta

from waystation.access import Scope
from waystation.api import pool_schemas as schemas
from waystation.api.polls import wait_seconds
from waystation.api.pool_messages import Payload, payload_of, shown_taken
from waystation.api.pool_routes import row
from waystation.api.reply import Reply, json_reply
from waystation.api.request import ClientGoneError, Request
from waystation.api.routes import Route
from waystation.errors import ForbiddenError, InvalidInputError
from waystation.pools import Pool, Pools
from waystation.pools.held import Nack, Session, Taken, Takings
from waystation.pools.mail import BATCH_MAX
from waystation.pools.states import Verdict, WorkerState
from waystation.runtime.decoding import decode_json
from waystation.runtime.service import Wakeup
from waystation.transactions.callbacks import Callbacks, parse_ticket

#: What a take brings at most, but for one message that is larger by itself.
_TAKE_BYTES_MAX = 4 * 1_048_576
#: A worker that waits at a take is heard of this often before it would be silent.
_LOOKS_WHILE_LIVE = 3

SessionNumber = Annotated[int, Meta(ge=1, le=2**53 - 1)]
Whole = Annotated[int, Meta(ge=0, le=2**53 - 1)]


class _Item(msgspec.Struct, frozen=True, kw_only=True):
    """A message that a worker was given; what else it was told of it may come along."""

    key: str
    epoch: Whole
    number: Whole
    token: str
    tries: Whole = 0


class _Nacked(_Item, frozen=True, kw_only=True):
    verdict: Verdict = "again"
    #: Before it is tried again; None: as the pool says.
    wait_seconds: Annotated[float, Meta(ge=0, le=30 * 86_400)] | None = None
    cause: str = ""


class _Registering(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    nonce: str


class _Says(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    session: SessionNumber


class _MaySay(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    #: None: an operator says it for the worker.
    session: SessionNumber | None = None


class _Taking(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    session: SessionNumber
    token: str


class _Acking(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    session: SessionNumber
    items: Annotated[list[_Item], Meta(min_length=1, max_length=BATCH_MAX)]
    #: Whether the next message of each key is wanted with the reply.
    next: bool = False


class _Nacking(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    session: SessionNumber
    items: Annotated[list[_Nacked], Meta(min_length=1, max_length=BATCH_MAX)]


class _Renewing(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    session: SessionNumber
    items: Annotated[list[_Item], Meta(min_length=1, max_length=BATCH_MAX)]


_T = TypeVar("_T")


class PoolWorkerRoutes:
    """Handlers of `/v1/pools/{pool}/workers/{uid}`."""

    def __init__(self, pools: Pools, callbacks: Callbacks, *, wait_seconds_max: float) -> None:
        self._pools = pools
        self._callbacks = callbacks
        self._wait_seconds_max = wait_seconds_max
        self._waiting: set[Wakeup] = set()
        self._ended = False

    def end(self) -> None:
        """Answers everyone who waits, with what there is; the server stops."""
        self._ended = True
        self._pools.answers.end_waits()
        for waiter in self._waiting:
            waiter.set()

    async def register(self, request: Request) -> Reply:
        """PUT /v1/pools/{pool}/workers/{uid}"""
        pool, uid, asked = await self._said(request, _Registering)
        terms = self._pools.terms(pool)
        session = await self._pools.members.register(pool.place, terms, uid, nonce=asked.nonce)
        return json_reply(
            {
                "uid": uid,
                "session": session.number,
                "lease_seconds": pool.options.lease_seconds,
                "stale_seconds": pool.options.stale_seconds,
            }
        )

    async def beat(self, request: Request) -> Reply:
        """POST /v1/pools/{pool}/workers/{uid}/beat"""
        pool, uid, says = await self._said(request, _Says)
        session = Session(uid, says.session)
        return json_reply(
            await self._pools.members.beat(pool.place, self._pools.terms(pool), session)
        )

    async def drain(self, request: Request) -> Reply:
        """POST /v1/pools/{pool}/workers/{uid}/drain"""
        pool, uid, says = await self._said(request, _MaySay)
        session = Session(uid, says.session or self._operator(request))
        taken = await self._pools.members.drain(pool.place, self._pools.terms(pool), session)
        return json_reply({"taken": taken})

    async def leave(self, request: Request) -> Reply:
        """POST /v1/pools/{pool}/workers/{uid}/leave"""
        pool, uid, says = await self._said(request, _MaySay)
        session = Session(uid, says.session or self._operator(request))
        await self._pools.members.leave(pool.place, self._pools.terms(pool), session)
        return json_reply({})

    async def take(self, request: Request) -> Reply:
        """POST /v1/pools/{pool}/workers/{uid}/take?wait=30s&max=64"""
        pool, uid, taking = await self._said(request, _Taking)
        most = _most(request.query("max"))
        seconds = wait_seconds(request.query("wait"), most=self._wait_seconds_max) or 0.0
        session = Session(uid, taking.session)
        takings = await self._take(request, pool, session, taking.token, most, seconds)
        items = [shown_taken(each, pool.project) for each in takings.items]
        return json_reply({"state": takings.state, "items": items})

    async def _take(
        self, request: Request, pool: Pool, session: Session, token: str, most: int, seconds: float
    ) -> Takings:
        """What there is; else what comes while the client waits, which keeps it live."""
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        hint = pool.place.ready_hint(session.uid).encode()
        with self._pools.wakeups.waiting(hint) as waiter:
            gone = request.abandonment()
            gone.add_done_callback(lambda _: waiter.set())
            self._waiting.add(waiter)
            try:
                while True:
                    waiter.clear()
                    takings = await self._pools.mail.take(
                        pool.place,
                        self._pools.terms(pool),
                        session,
                        token=token,
                        most=most,
                        bytes_max=_TAKE_BYTES_MAX,
                        lease_ms=pool.lease_ms,
                    )
                    left = until - loop.time()
                    done = takings.items or takings.state is not WorkerState.LIVE
                    if done or left <= 0 or self._ended or gone.done():
                        return takings
                    pause = min(left, pool.options.stale_seconds / _LOOKS_WHILE_LIVE)
                    if takings.next_ms >= 0:
                        pause = min(pause, takings.next_ms / 1000 + 0.001)
                    await waiter.wait(pause)
                    if gone.done():
                        # Nobody is there to be given anything.
                        raise ClientGoneError
            finally:
                self._waiting.discard(waiter)
                gone.cancel()

    async def ack(self, request: Request) -> Reply:
        """POST /v1/pools/{pool}/workers/{uid}/ack"""
        pool, uid, asked = await self._said(request, _Acking)
        acked = await self._pools.mail.ack(
            pool.place,
            self._pools.terms(pool),
            Session(uid, asked.session),
            [_taken(each) for each in asked.items],
            next_lease_ms=pool.lease_ms if asked.next else 0,
        )
        for outcome, count in Counter(each.outcome for each in acked).items():
            self._pools.tally.acked(pool, outcome, count)
        project = pool.project
        told = [
            {
                "outcome": each.outcome,
                "next": None if each.next is None else shown_taken(each.next, project),
            }
            for each in acked
        ]
        return json_reply({"results": told})

    async def nack(self, request: Request) -> Reply:
        """POST /v1/pools/{pool}/workers/{uid}/nack"""
        pool, uid, asked = await self._said(request, _Nacking)
        items = [
            Nack(
                taken=_taken(each),
                verdict=each.verdict,
                wait_ms=pool.wait_ms(each.tries)
                if each.wait_seconds is None
                else round(each.wait_seconds * 1000),
                cause=each.cause,
            )
            for each in asked.items
        ]
        session = Session(uid, asked.session)
        outcomes = await self._pools.mail.nack(pool.place, self._pools.terms(pool), session, items)
        for outcome, count in Counter(outcomes).items():
            self._pools.tally.nacked(pool, outcome, count)
        return json_reply({"results": [{"outcome": each} for each in outcomes]})

    async def renew(self, request: Request) -> Reply:
        """POST /v1/pools/{pool}/workers/{uid}/renew"""
        pool, uid, asked = await self._said(request, _Renewing)
        lost = await self._pools.mail.renew(
            pool.place,
            self._pools.terms(pool),
            Session(uid, asked.session),
            [_taken(each) for each in asked.items],
            lease_ms=pool.lease_ms,
        )
        return json_reply({"lost": lost})

    async def answer(self, request: Request) -> Reply:
        """POST /v1/pools/{pool}/workers/{uid}/answer"""
        pool, _, given = await self._said(request, Payload)
        data, usual = payload_of(bytes(given.data), given.text, given.base64)
        ticket = parse_ticket(given.answer_to)
        if ticket is not None:
            # A step gets JSON.
            body = data if given.text is None else msgspec.json.encode(given.text)
            await self._callbacks.use(*ticket, body)
            return json_reply({})
        told = usual if given.content_type is None else given.content_type
        await self._pools.answers.put(pool.place, given.answer_to, told, data)
        return json_reply({})

    async def _said(self, request: Request, type_: type[_T]) -> tuple[Pool, str, _T]:
        assert request.access is not None
        name, uid = request.params
        body = await request.body()
        try:
            said = decode_json(body, type_)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise InvalidInputError(f"The body cannot be accepted: {error}.") from error
        return await self._pools.use(request.access.project, name), uid, said

    def _operator(self, request: Request) -> int:
        """The session of an operator, who needs an admin key to speak for a worker."""
        assert request.access is not None
        if Scope.ADMIN not in request.access.scopes:
            raise ForbiddenError("To speak for a worker, without its session, takes an admin key.")
        return 0

    def routes(self) -> list[Route]:
        """The rows of the route table."""
        worker = "/v1/pools/{pool}/workers/{uid}"
        return [
            row("PUT", worker, self.register, schemas.REGISTER),
            row("POST", f"{worker}/beat", self.beat, schemas.BEAT),
            row("POST", f"{worker}/drain", self.drain, schemas.DRAIN),
            row("POST", f"{worker}/leave", self.leave, schemas.LEAVE),
            row("POST", f"{worker}/take", self.take, schemas.TAKE),
            row("POST", f"{worker}/ack", self.ack, schemas.ACK),
            row("POST", f"{worker}/nack", self.nack, schemas.NACK),
            row("POST", f"{worker}/renew", self.renew, schemas.RENEW),
            row("POST", f"{worker}/answer", self.answer, schemas.ANSWER),
        ]


def _taken(item: _Item) -> Taken:
    return Taken(item.key, item.epoch, item.number, item.token, item.tries, 0, 0, b"")


def _most(text: str | None) -> int:
    if text is None:
        return BATCH_MAX
    if not (text.isascii() and text.isdecimal() and 1 <= int(text[:9]) <= BATCH_MAX):
        raise InvalidInputError(f"max is a whole number, 1 to {BATCH_MAX}.", field="max")
    return int(text)
