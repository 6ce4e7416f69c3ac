"""Sends one message over a WebSocket, to an address that the guard has judged.

A message counts as delivered when the other side has answered our close: it reads in order, so it
has read the message. Each message has a connection of its own, as with the plugin.
"""

from __future__ import annotations

import asyncio
import socket
import ssl

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import InvalidStatus, WebSocketException

from waystation.delivery.addresses import AddressGuard
from waystation.delivery.request import Failure, Outcome, Outgoing
from waystation.delivery.resolver import NameUnknownError, Resolver
from waystation.errors import ForbiddenAddressError, InvalidInputError

_CLOSED_WELL = (1000, 1001, 1005)
#: What the other side may say meanwhile; nobody listens.
_REPLY_BYTES_MAX = 65_536
_FORBIDDEN = Outcome(failure=Failure.FORBIDDEN, detail="the endpoint's address is not allowed")


def _refused(status: int) -> Outcome:
    """Return the outcome of a handshake that the endpoint answered with another status than 101.

    2xx is no success: the message was not sent.
    """
    outcome = Outcome(status=status)
    if not outcome.succeeded:
        return outcome
    detail = f"the endpoint answered {status} instead of opening a WebSocket"
    return Outcome(failure=Failure.CONNECTION, detail=detail)


class _Connect(connect):
    """Follows no redirect: it would lead around the guard."""

    def process_redirect(self, exc: Exception) -> Exception | str:
        return exc


class SocketSender:
    """Sends to `ws` and `wss`."""

    def __init__(self, guard: AddressGuard, resolver: Resolver) -> None:
        self._guard = guard
        self._resolver = resolver

    async def send(self, request: Outgoing) -> Outcome:
        """Sends one message; a failure is an outcome, never an exception."""
        try:
            async with asyncio.timeout(request.total_seconds_max):
                return await self._send(request)
        except TimeoutError:
            return Outcome(failure=Failure.TIMEOUT, detail="the endpoint took too long")
        except (ForbiddenAddressError, InvalidInputError):
            return _FORBIDDEN
        except NameUnknownError:
            return Outcome(failure=Failure.NAME, detail="the endpoint's host cannot be resolved")
        except InvalidStatus as error:
            return _refused(error.response.status_code)
        except ssl.SSLCertVerificationError:
            detail = "the endpoint's certificate could not be verified"
            return Outcome(failure=Failure.CONNECTION, detail=detail)
        except (OSError, EOFError, WebSocketException) as error:
            detail = f"the connection broke or was no WebSocket ({type(error).__name__})"
            return Outcome(failure=Failure.CONNECTION, detail=detail)

    async def _send(self, request: Outgoing) -> Outcome:
        # The guard's rules are those of HTTP, which a WebSocket begins as.
        parts = self._guard.check_url("http" + request.url.removeprefix("ws"))
        host, secure = parts.hostname or "", parts.scheme == "https"
        addresses = self._resolver.kept(host) or await self._resolver.resolve(host)
        raw = await self._connect(addresses, parts.port or (443 if secure else 80))
        try:
            connection = await _Connect(
                request.url,
                sock=raw,
                ssl=ssl.create_default_context() if secure else None,
                additional_headers=request.headers,
                compression=None,
                max_size=_REPLY_BYTES_MAX,
                open_timeout=None,
                ping_interval=None,
                close_timeout=request.total_seconds_max,
                proxy=None,
            )
        except BaseException:
            raw.close()
            raise
        return await self._speak(connection, request.body)

    async def _speak(self, connection: ClientConnection, body: bytes) -> Outcome:
        try:
            await connection.send(body)
            closing = asyncio.ensure_future(connection.close())
            try:
                # What is not taken off would hold back the answer to our close.
                async for _ in connection:
                    pass
            finally:
                await closing
        finally:
            connection.transport.abort()
        code = connection.close_code
        if code in _CLOSED_WELL:
            # A WebSocket has no status of its own for what went well.
            return Outcome(status=200)
        return Outcome(failure=Failure.CONNECTION, detail=f"the endpoint closed with {code}")

    async def _connect(self, addresses: list[str], port: int) -> socket.socket:
        """A connection to the first of these that answers; the guard has judged all."""
        loop, problem = asyncio.get_running_loop(), OSError("no address")
        for address in addresses:
            family = socket.AF_INET6 if ":" in address else socket.AF_INET
            raw = socket.socket(family, socket.SOCK_STREAM)
            raw.setblocking(False)
            try:
                await loop.sock_connect(raw, (address, port))
            except OSError as error:
                raw.close()
                problem = error
            except BaseException:
                raw.close()
                raise
            else:
                return raw
        raise problem
