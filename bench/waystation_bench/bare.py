"""The limit for HTTP: bare ASGI handlers with the same script calls, no key, no checks.

What a request costs here is uvicorn, the store client and the scripts; what it costs us on top is
routing, authentication, validation, default headers, metrics and error handling.
"""

from __future__ import annotations

import itertools
from typing import Any

from waystation.api.reply import Receive, Scope, Send
from waystation.channels import keys
from waystation.channels.reader import CLOCKS_PER_CALL_MAX
from waystation.logs import keys as log_keys
from waystation.pools.names import Place
from waystation.pools.terms import Terms
from waystation.store.client import Store
from waystation.store.keys import DEFAULT_PROJECT
from waystation.store.scripts import script
from waystation.transactions import names as transaction_names
from waystation_bench.bench_app import NO_OP, app

_APPEND = script("waystation.logs", "append")
_PUBLISH = script("waystation.channels", "publish")
_FETCH = script("waystation.channels", "fetch")
_ACK = script("waystation.channels", "ack")
_ENQUEUE = script("waystation.pools", "enqueue")
_START = script("waystation.transactions", "start")

_TTL_SECONDS = 1815
#: Arguments of the scripts of channels that record nothing.
_NO_RECORD_LOG = ("", b"")
_BYTES_MAX = 8_388_608
_JSON = (b"content-type", b"application/json")
_EMPTY = (b"content-length", b"0")
#: The log of topic `bench`, as a new station has it.
LOG = f"t.{DEFAULT_PROJECT}.bench.0"
PARTITIONS = 4
(_NO_OP,) = (each for each in app.pipelines if each.name == NO_OP)
_KIND = f"{_NO_OP.group} {NO_OP} {DEFAULT_PROJECT} {_NO_OP.version} 0"
_TERMS = "ds-bench 60000 60000"
#: Before the recipient key, which is in the path: nothing is read of the envelope.
POOL_PATH = "/pool/"
_POOL_HEAD = Place(DEFAULT_PROJECT, "bench").head
_POOL_TERMS = Terms().argument
_REMEMBER_MS = 300_000


class BareApp:
    """Publishes, fetches and acknowledges on the paths of channels; produces to one topic.

    Starts transactions of one pipeline, and enqueues in one pool.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._partitions = itertools.cycle(range(PARTITIONS))
        self._numbers = itertools.count()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        method = scope["method"]
        parts = scope["path"].split("/")
        if method == "PUT":
            await self._publish(parts[2], parts[4], receive, send)
        elif parts[1] == "pool":
            await self._enqueue(parts[2], receive, send)
        elif method == "POST" and parts[2] == "transactions":
            await self._start(receive, send)
        elif method == "POST":
            await self._produce(receive, send)
        elif method == "GET":
            await self._fetch(parts[2], parts[5], send)
        else:
            await self._ack(parts[2], parts[5], scope["query_string"], send)

    async def _publish(self, channel: str, message_id: str, receive: Receive, send: Send) -> None:
        content = (await receive())["body"]
        tag = keys.channel_tag(DEFAULT_PROJECT, channel)
        await self._store.run(
            _PUBLISH,
            [keys.clock(tag), keys.message_id(tag, message_id)],
            [
                keys.message_prefix(tag),
                b'{"id":"%b","content":%b}' % (message_id.encode(), content),
                _TTL_SECONDS,
                keys.pubsub_topic(tag),
                *_NO_RECORD_LOG,
            ],
        )
        await _reply(send, b'{"messageID":"%b"}\n' % message_id.encode())

    async def _produce(self, receive: Receive, send: Send) -> None:
        content, partition = (await receive())["body"], next(self._partitions)
        reply = await self._store.run(_APPEND, log_keys.all_of(LOG, partition), [content])
        await _reply(send, b'{"partition":%d,"offset":%d}\n' % (partition, int(reply[1])))

    async def _start(self, receive: Receive, send: Send) -> None:
        content, number = (await receive())["body"], next(self._numbers)
        transaction_id = f"tx-0000{number:036x}"
        words = (
            _TERMS,
            transaction_id,
            _KIND,
            "",
            0,
            0,
            content,
            b"\xc4%c%b" % (len(content), content),
            "",
        )
        reply = await self._store.run(_START, [transaction_names.log(0)], words)
        await _reply(send, b'{"metadata":{"txId":"%b"}}\n' % reply[2], status=201)

    async def _enqueue(self, key: str, receive: Receive, send: Send) -> None:
        content, message_id = (await receive())["body"], f"{next(self._numbers):032x}"
        words = (_POOL_TERMS, _REMEMBER_MS, message_id, key, content)
        await self._store.run(_ENQUEUE, [_POOL_HEAD], words)
        await send({"type": "http.response.start", "status": 200, "headers": [_EMPTY]})
        await send({"type": "http.response.body", "body": b""})

    async def _fetch(self, channel: str, subscriber: str, send: Send) -> None:
        tag = keys.channel_tag(DEFAULT_PROJECT, channel)
        _, last, _, *bodies = await self._store.run(
            _FETCH,
            [keys.clock(tag), keys.cursor(tag, subscriber)],
            [keys.message_prefix(tag), 1, _BYTES_MAX, _TTL_SECONDS, CLOCKS_PER_CALL_MAX, ""],
        )
        body = b'{"messages":[%b],"ackHandle":"%b"}\n' % (b",".join(bodies), last)
        await _reply(send, body)

    async def _ack(self, channel: str, subscriber: str, query: bytes, send: Send) -> None:
        tag = keys.channel_tag(DEFAULT_PROJECT, channel)
        await self._store.run(
            _ACK,
            [keys.clock(tag), keys.cursor(tag, subscriber)],
            [query.partition(b"=")[2], _TTL_SECONDS, *_NO_RECORD_LOG, subscriber],
        )
        await _reply(send, b"", status=204)


async def _reply(send: Send, body: bytes, status: int = 200) -> None:
    headers: list[Any] = [_JSON, (b"content-length", b"%d" % len(body))] if body else []
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
