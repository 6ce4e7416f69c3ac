"""Requests of the asynchronous client: sent again where that does no harm, errors raised."""

from __future__ import annotations

from waystation.client.async_transport import AsyncTransport
from waystation.client.messages import Answer, raise_for
from waystation.errors import StationUnreachableError

#: Pauses before the second, third… try; together they outlast a restart of the store.
_PAUSES_SECONDS = (0.05, 0.2, 0.5, 1.0, 2.0)
#: What a station that is busy, or a proxy before one that is away, answers.
_AWAY = frozenset({502, 503, 504})


class AsyncCaller:
    """Calls a station."""

    def __init__(self, transport: AsyncTransport) -> None:
        self._transport = transport

    async def call(
        self,
        method: str,
        path: str,
        *,
        body: bytes | None = None,
        content_type: str = "",
        patience: float = 0.0,
        repeatable: bool = True,
    ) -> Answer:
        """The reply to a request; raises the error that it tells of.

        One that is repeatable is tried again when the station is away for a moment.
        """
        for pause in (*(_PAUSES_SECONDS if repeatable else ()), None):
            try:
                answer = await self._transport.request(
                    method, path, body=body, content_type=content_type, patience=patience
                )
            except StationUnreachableError:
                if pause is None:
                    raise
            else:
                if answer.status not in _AWAY or pause is None:
                    break
            await self._transport.sleep(pause)
        raise_for(answer)
        return answer
