"""A transfer: one request on a handle of libcurl, and what came of it."""

from __future__ import annotations

import ssl
from collections.abc import Callable

import pycurl

from waystation.delivery.request import Failure, Outcome, Outgoing

#: What is kept of a reply, and what is read of it before the connection is dropped; a request can
#: ask for more.
EXCERPT_BYTES = 1024
REPLY_BYTES_MAX = 65_536
#: How long libcurl keeps an answer that it was told: longer than the resolver keeps it and a
#: transfer waits for its turn, so that libcurl never asks for itself.
_ANSWER_SECONDS = 120
#: An empty Expect stops libcurl from asking first, which costs a round trip.
_CONSTANT_HEADERS = ["Expect:"]
#: Lines that end a block of headers; libcurl accepts both.
_BLANK = (b"\r\n", b"\n")
_INCOMPLETE = "the connection was closed before the reply was complete"
_DETAILS = {
    pycurl.E_COULDNT_CONNECT: "the connection was refused or could not be made",
    pycurl.E_GOT_NOTHING: "the connection was closed without a reply",
    pycurl.E_PARTIAL_FILE: _INCOMPLETE,
    pycurl.E_PEER_FAILED_VERIFICATION: "the endpoint's certificate could not be verified",
    pycurl.E_SSL_CONNECT_ERROR: "TLS could not be agreed on",
}

#: Host and port.
Target = tuple[str, int]
#: As libcurl tells it: family, kind, protocol, and the address with its port.
SocketAddress = tuple[int, int, int, tuple[object, ...]]
#: Of a handle that has not been used: no option is what a request asks for.
_UNUSED = Outgoing(url="", method="", connect_seconds_max=0.0, total_seconds_max=0.0)


class Transfer:
    """A handle of libcurl with the request that it is busy with; the next one may use it again.

    Options stay on a handle, and each takes its time to be set: those that are what they were for
    the request before are left alone.
    """

    __slots__ = (
        "done",
        "excerpt",
        "forbidden",
        "handle",
        "has_headers",
        "parts",
        "request",
        "size",
        "tells",
    )

    #: Hears what came of it.
    done: Callable[[Outcome], None]
    #: The addresses of a target that libcurl hears of with this transfer; None: it knows them.
    tells: tuple[Target, list[str]] | None

    def __init__(self, open_socket: Callable[[Transfer, SocketAddress], object]) -> None:
        self.handle = _new_handle()
        self.handle.setopt(pycurl.WRITEFUNCTION, self.on_data)
        self.handle.setopt(pycurl.HEADERFUNCTION, self.on_header)
        self.handle.setopt(
            pycurl.OPENSOCKETFUNCTION, lambda purpose, address: open_socket(self, address)
        )
        self.request = _UNUSED
        self.parts: list[bytes] = []

    def prepare(
        self,
        request: Outgoing,
        tells: tuple[Target, list[str]] | None,
        done: Callable[[Outcome], None],
    ) -> bool:
        """Makes the handle ready for a request; False if that must not be sent."""
        handle, before = self.handle, self.request
        if request.headers != before.headers or request.method != before.method:
            lines = _header_lines(request)
            if lines is None:
                return False
            handle.setopt(pycurl.HTTPHEADER, [*lines, *_CONSTANT_HEADERS])
            handle.setopt(pycurl.CUSTOMREQUEST, request.method)
        self.request, self.tells, self.done = request, tells, done
        self.excerpt, self.size, self.forbidden = b"", 0, False
        #: Whether the header block of the last reply has ended; interim replies have one, too.
        self.has_headers = False
        handle.setopt(pycurl.POSTFIELDS, request.body)
        if tells is not None:
            handle.setopt(pycurl.RESOLVE, [_fixed_answer(*tells)])
        if request.url != before.url:
            handle.setopt(pycurl.URL, request.url)
        if request.connect_seconds_max != before.connect_seconds_max:
            handle.setopt(pycurl.CONNECTTIMEOUT_MS, round(request.connect_seconds_max * 1000))
        if request.total_seconds_max != before.total_seconds_max:
            handle.setopt(pycurl.TIMEOUT_MS, round(request.total_seconds_max * 1000))
        return True

    def on_header(self, line: bytes) -> None:
        """Note the end of the headers, because libcurl accepts a reply that has none.

        libcurl calls this with each line of the headers, and of trailers.
        """
        if line in _BLANK:
            self.has_headers = True
        elif line.startswith(b"HTTP/"):
            self.has_headers = False

    def on_data(self, data: bytes) -> int:
        """Called by libcurl with what has come of the reply's body."""
        length = len(data)
        if not self.size and length <= EXCERPT_BYTES:
            self.excerpt = data  # All of it, as a rule.
        elif len(self.excerpt) < EXCERPT_BYTES:
            self.excerpt = (self.excerpt + data)[:EXCERPT_BYTES]
        self.size += length
        wanted = self.request.reply_bytes_max
        if self.size > (wanted or REPLY_BYTES_MAX):
            # A short count makes libcurl end the transfer: the rest is not wanted.
            self.parts.clear()
            return 0
        if wanted:
            self.parts.append(data)
        return length


def _header_lines(request: Outgoing) -> list[str] | list[str | bytes] | None:
    """The headers of a request, as libcurl wants them; None if they must not be sent.

    The last line of defence: headers were checked when they were set.
    """
    # With a semicolon, since a colon and nothing behind it would tell libcurl to leave it out.
    lines = [f"{name}: {value}" if value else f"{name};" for name, value in request.headers]
    text = request.method + "".join(lines)
    if "\n" in text or "\r" in text or "\x00" in text:
        return None
    if text.isascii():
        return lines
    # Ids and groups of messages may have any letter: they leave in UTF-8, as they came.
    return [line if line.isascii() else line.encode() for line in lines]


def _fixed_answer(target: Target, addresses: list[str]) -> str:
    """An answer of the name service, as libcurl wants it told."""
    host, port = target
    told = ",".join(f"[{each}]" if ":" in each else each for each in addresses)
    return f"+{host}:{port}:{told}"


def _new_handle() -> pycurl.Curl:
    handle = pycurl.Curl()
    handle.setopt(pycurl.NOSIGNAL, 1)
    handle.setopt(pycurl.FOLLOWLOCATION, 0)
    handle.setopt(pycurl.PROTOCOLS, pycurl.PROTO_HTTP | pycurl.PROTO_HTTPS)
    handle.setopt(pycurl.HTTP_VERSION, pycurl.CURL_HTTP_VERSION_1_1)
    # Proxy variables of the environment are not trusted: they would lead around the guard.
    handle.setopt(pycurl.PROXY, "")
    handle.setopt(pycurl.NOPROXY, "*")
    handle.setopt(pycurl.TCP_NODELAY, 1)
    # Else each request would tell the versions of libcurl and of all that it is built of.
    handle.setopt(pycurl.USERAGENT, "waystation")
    handle.setopt(pycurl.HTTPHEADER, _CONSTANT_HEADERS)
    handle.setopt(pycurl.DNS_CACHE_TIMEOUT, _ANSWER_SECONDS)
    authorities = ssl.get_default_verify_paths().cafile
    if authorities:
        handle.setopt(pycurl.CAINFO, authorities)
    return handle


def outcome_of(transfer: Transfer, error: int) -> Outcome:
    """What came of a transfer that libcurl has done with."""
    handle = transfer.handle
    seconds = handle.getinfo(pycurl.TOTAL_TIME)
    excerpt = transfer.excerpt
    if error == 0 and not transfer.has_headers:
        return Outcome(failure=Failure.CONNECTION, detail=_INCOMPLETE, seconds=seconds)
    if error in (0, pycurl.E_WRITE_ERROR):
        status = handle.getinfo(pycurl.RESPONSE_CODE)
        if error == 0 and status < 300 and not transfer.parts:
            return Outcome(status=status, seconds=seconds, excerpt=excerpt)  # As a rule.
        # Looked for only where it means something.
        wait = handle.getinfo(pycurl.RETRY_AFTER) if status >= 300 else 0
        body, cut = b"".join(transfer.parts), error != 0
        transfer.parts.clear()  # The handle may be kept for long.
        return Outcome(
            status=status,
            seconds=seconds,
            excerpt=excerpt,
            body=body,
            cut=cut,
            retry_after=float(wait) if wait else None,
        )
    if transfer.forbidden:
        detail = "the endpoint's address is not allowed"
        return Outcome(failure=Failure.FORBIDDEN, detail=detail, seconds=seconds)
    if error == pycurl.E_OPERATION_TIMEDOUT:
        return Outcome(
            failure=Failure.TIMEOUT, detail="the endpoint took too long", seconds=seconds
        )
    detail = _DETAILS.get(error, "the connection broke or was no HTTP")
    return Outcome(failure=Failure.CONNECTION, detail=detail, seconds=seconds, excerpt=excerpt)
