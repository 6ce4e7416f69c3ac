"""An agent that plays the redis-events plugin: what it reads, what it pops, what it writes.

As the plugin's inbound transport does it, with the public cluster client and nothing of ours: a new
uid at each start, one registration, no heartbeat, no farewell. What it has received it writes to
lists of its own, `played.<recipient key>`, so that a test can tell who got what, in which order.

A message with `txn_id` stops the agent for good, as it stops the real one: the plugin waits for a
response of a session that cannot respond. With `--answers` it plays an agent that can.

    python -m tests.acapy.agent <port> <inbound topic> <direct response topic> <seconds of a pop>
        [--answers]
"""

from __future__ import annotations

import asyncio
import base64
import json
import sys
import uuid
from datetime import datetime
from typing import Any

from redis.asyncio.cluster import RedisCluster


class PlayedAgent:
    """One agent process of the plugin."""

    def __init__(
        self, client: Any, inbound: str, direct: str, pop_seconds: float, *, answers: bool
    ) -> None:
        self.uid = str(uuid.uuid4())
        self._client = client
        self._inbound = inbound
        self._direct = direct
        self._pop_seconds = pop_seconds
        self._answers = answers

    async def run(self) -> None:
        """Registers once; then goes round its list for ever."""
        empty = base64.urlsafe_b64encode(json.dumps([]).encode())
        await self._client.hset("uid_recip_keys_map", self.uid, empty)
        sys.stdout.write(f"{self.uid}\n")
        sys.stdout.flush()
        while True:
            written = await self._client.hget("uid_recip_keys_map", self.uid)
            if not written:
                await asyncio.sleep(self._pop_seconds)
                continue
            keys = json.loads(base64.urlsafe_b64decode(written))
            if not keys:
                # The plugin turns at full speed here, which two processors cannot spare.
                await asyncio.sleep(0.01)
            for key in keys:
                found = await self._client.blpop([f"{self._inbound}_{key}"], self._pop_seconds)
                if found is None:
                    await asyncio.sleep(self._pop_seconds)
                    continue
                await self._receive(key, json.loads(found[1]))

    async def _receive(self, key: str, message: dict[str, Any]) -> None:
        local = datetime.now().strftime("%Y-%m-%dT%H:%M:%SZ")
        await self._client.hset("uid_last_access_map", self.uid, local)
        field = f"{self.uid}_{key}"
        count = await self._client.hget("uid_recip_key_pending_msg_count", field)
        if count and int(count) >= 1:
            await self._client.hset("uid_recip_key_pending_msg_count", field, int(count) - 1)
        body = base64.urlsafe_b64decode(message["payload"])
        await self._client.rpush(f"played.{key}", f"{self.uid} ".encode() + body)
        if "txn_id" in message:
            if not self._answers:
                await asyncio.Event().wait()
            response = base64.urlsafe_b64encode(b"answer to " + body).decode()
            data = {"content-type": "application/ssi-agent-wire", "response": response}
            answer = json.dumps({"txn_id": message["txn_id"], "response_data": data})
            await self._client.rpush(self._direct, answer)


async def main(port: int, inbound: str, direct: str, pop_seconds: float, *flags: str) -> None:
    client = RedisCluster(host="127.0.0.1", port=port)
    agent = PlayedAgent(client, inbound, direct, pop_seconds, answers="--answers" in flags)
    await agent.run()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), *sys.argv[2:4], float(sys.argv[4]), *sys.argv[5:]))
