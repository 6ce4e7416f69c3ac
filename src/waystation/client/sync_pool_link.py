"""What a pool's worker says to its station with the ordinary client.

Everything can be said again after a lost reply, and is, until it is heard.
"""

# Generated from async_pool_link.py by scripts/generate.py; change that one.

from __future__ import annotations

from typing import Any, TypeVar

from waystation.client.messages import decode_answer
from waystation.client.pool_messages import Registered
from waystation.client.pools import path_of
from waystation.client.sync_background import Condition, Flag
from waystation.client.sync_caller import Caller
from waystation.errors import (
    BusyError,
    OutcomeUnknownError,
    StationUnreachableError,
    StoreUnavailableError,
    WaystationError,
    WorkerEvictedError,
    WorkerUnknownError,
)
from waystation.runtime.ids import IdSource
from waystation.runtime.json_values import encode_json
from waystation.runtime.logging import logger

_log = logger("client")

#: How long a take waits at the station.
POLL_SECONDS = 20.0
#: Before something is said again that could not be said.
_PAUSE_SECONDS = 0.5
_AWAY = (BusyError, OutcomeUnknownError, StationUnreachableError, StoreUnavailableError)

_T = TypeVar("_T")


class PoolLink:
    """Speaks for one worker."""

    def __init__(
        self, caller: Caller, pool: str, uid: str, identity: IdSource, *, ended: Flag
    ) -> None:
        self._caller = caller
        self._path = path_of(pool, "workers", uid)
        self._nonce = identity.token(16)
        self._pool = pool
        #: From when on nothing is said again.
        self._ended = ended
        self._registered: Registered | None = None
        #: Held by who registers: until it has heard of it, nobody knows which session holds.
        self._registering = Condition()

    @property
    def patience_seconds(self) -> float:
        """How long the pool waits for the worker to be heard of, or for one of its messages."""
        return min(self._session.stale_seconds, self._session.lease_seconds)

    @property
    def _session(self) -> Registered:
        assert self._registered is not None, "it has not registered"
        return self._registered

    def register(self) -> None:
        """Begins a session; the same one, if this process has it already."""
        body = encode_json({"nonce": self._nonce})
        with self._registering:
            answer = self._caller.call("PUT", self._path, body=body)
            self._registered = decode_answer(answer, Registered)

    def register_anew(self) -> None:
        """Begins another session; while the station is away, again and again."""
        while True:
            try:
                return self.register()
            except _AWAY as error:
                self._wait_for_station(error)

    def say(self, verb: str, type_: type[_T], body: dict[str, Any], query: str = "") -> _T:
        """Says something until it is heard; while the station is away, again and again."""
        while True:
            session = self._session.session
            sent = encode_json({"session": session, **body})
            patience = POLL_SECONDS if query else 0.0
            try:
                answer = self._caller.call(
                    "POST", f"{self._path}/{verb}{query}", body=sent, patience=patience
                )
                return decode_answer(answer, type_)
            except (WorkerEvictedError, WorkerUnknownError):
                with self._registering:
                    if session == self._session.session:
                        raise
                # It has begun anew meanwhile, and says it under its new session.
            except _AWAY as error:
                self._wait_for_station(error)

    def _wait_for_station(self, error: WaystationError) -> None:
        if self._ended.is_set:
            raise error
        _log.warning("the station is away", pool=self._pool, problem=str(error))
        self._ended.wait(_PAUSE_SECONDS)

    def say_once(self, verb: str) -> None:
        """At the end, when nobody waits for a station that is away: its leases run out."""
        body = encode_json({"session": self._session.session})
        try:
            self._caller.call("POST", f"{self._path}/{verb}", body=body)
        except WaystationError as error:
            _log.warning(f"a worker could not {verb}", pool=self._pool, problem=str(error))
