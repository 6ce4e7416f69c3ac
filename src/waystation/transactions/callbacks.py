"""Callbacks: how somebody outside answers a step that has asked, minutes or days later.

The way back is a URL that only whoever was asked knows: it ends with a token, an HMAC over the
transaction and the place of the step. So it is the same whenever the step asks again, it is good
before the request leaves, and nothing has to be kept to tell it from a forged one. It is used once:
what is posted first is the step's output, and every other request is told so.
"""

from __future__ import annotations

import hashlib
import hmac

import msgspec

from waystation.errors import (
    CallbackInvalidError,
    CallbackUnknownError,
    CallbackUsedError,
    TransactionUnknownError,
)
from waystation.runtime.ids import IdSource
from waystation.store import keys
from waystation.store.client import Store
from waystation.store.scripts import script
from waystation.telemetry import metrics
from waystation.transactions import names
from waystation.transactions.cells import Terms
from waystation.transactions.signals import Signals

_CALLBACK = script(__package__, "callback")
_FIELD = "callback"
_SECRET_BYTES = 32
#: Of a token in a URL: 128 bits.
_TOKEN_LENGTH = 32
#: Tells a call that is repeated, since its reply was lost, from a second request.
_REQUEST_BYTES = 4
#: Behind the public URL.
PATH = "/v1/callbacks"
_accept = msgspec.json.Decoder().decode
_counts = {word: metrics.callbacks.of(word) for word in ("done", "used", "unknown", "invalid")}


async def open_secret(store: Store, identity: IdSource) -> bytes:
    """The secret of the installation; made by whoever opens it first."""
    made = bytes.fromhex(identity.token(_SECRET_BYTES))
    await store.call("HSETNX", keys.SECRETS, _FIELD, made, repeatable=True)
    return bytes(await store.call("HGET", keys.SECRETS, _FIELD, repeatable=True))


class CallbackUrls:
    """Makes URLs, and knows its own."""

    def __init__(self, secret: bytes, public_url: str = "") -> None:
        self._secret = secret
        #: What URLs begin with; empty: nobody could call back.
        self.public_url = public_url.rstrip("/")

    def __call__(self, transaction_id: str, place: str) -> str:
        """The URL of a step; empty without a public one."""
        if not self.public_url:
            return ""
        token = self._token(transaction_id, place)
        return f"{self.public_url}{PATH}/{transaction_id}/{place}/{token}"

    def ticket(self, transaction_id: str, place: str) -> str:
        """Where a worker's answer to a step goes: the same, as one word without an address."""
        return f"{transaction_id}.{place}.{self._token(transaction_id, place)}"

    def knows(self, transaction_id: str, place: str, token: str) -> bool:
        """Whether a token is ours; how long that takes tells nothing."""
        told = token.encode(errors="replace")
        return hmac.compare_digest(self._token(transaction_id, place).encode(), told)

    def _token(self, transaction_id: str, place: str) -> str:
        text = f"callback {transaction_id} {place}".encode(errors="replace")
        return hmac.new(self._secret, text, hashlib.sha256).hexdigest()[:_TOKEN_LENGTH]


class Callbacks:
    """Hands what is posted over to the step."""

    def __init__(
        self, signals: Signals, urls: CallbackUrls, *, terms: Terms, identity: IdSource
    ) -> None:
        self._signals = signals
        self._urls = urls
        self._terms = terms
        self._identity = identity

    async def use(self, transaction_id: str, place: str, token: str, body: bytes) -> None:
        """Makes `body` the output of the step; raises what there is to say against it."""
        if not self._urls.knows(transaction_id, place, token):
            _counts["unknown"].inc()
            raise CallbackUnknownError("There is no such callback.")
        _require_json(body)
        request = self._identity.token(_REQUEST_BYTES)
        words = (self._terms.argument, "", transaction_id, place, request, body)
        try:
            outcome, *_ = await self._signals.reach(_CALLBACK, names.cell_of(transaction_id), words)
        except TransactionUnknownError:
            outcome = b"unknown"
        _counts[outcome.decode()].inc()
        if outcome == b"unknown":
            raise CallbackUnknownError("There is no such callback.")
        if outcome == b"used":
            raise CallbackUsedError("The callback was used already, or its step has ended.")


def parse_ticket(text: str) -> tuple[str, str, str] | None:
    """Transaction, place and token of a ticket; None for what is none."""
    transaction_id, _, rest = text.partition(".")
    place, _, token = rest.rpartition(".")
    is_ticket = transaction_id.startswith("tx-") and place and token
    return (transaction_id, place, token) if is_ticket else None


def _require_json(body: bytes) -> None:
    try:
        _accept(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        _counts["invalid"].inc()
        raise CallbackInvalidError(f"The body is no JSON: {error}.", field="body") from error
