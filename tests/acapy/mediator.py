"""A mediator that plays the plugin: pushes to agents' lists itself, and keeps the maps as it does.

Step by step, with a call for each, and so with the plugin's races: two that assign at once lose one
another's keys, and an agent that was idle is taken for stale by two quick messages.
"""

from __future__ import annotations

import base64
import json
from datetime import datetime, timedelta
from typing import Any

_STALE = timedelta(seconds=15)


class PlayedMediator:
    """A mediator of the plugin, on the public cluster client."""

    def __init__(self, client: Any, prefix: str) -> None:
        self._client = client
        self._prefix = prefix

    async def send(self, key: str, body: bytes) -> None:
        """As the outbound transport in mediator mode."""
        uid = await self._client.hget("recip_key_uid_map", key)
        owner = uid.decode() if uid else await self._assign(key)
        owner = await self._reassign_stale(owner, key)
        await self._client.hincrby("uid_recip_key_pending_msg_count", f"{owner}_{key}", 1)
        payload = base64.urlsafe_b64encode(body).decode()
        await self._client.rpush(f"{self._prefix}_inbound_{key}", json.dumps({"payload": payload}))

    async def _new_uid(self, ignore: str = "") -> str:
        if not await self._client.get("round_robin_iterator"):
            await self._client.set("round_robin_iterator", 0)
        place = int(await self._client.get("round_robin_iterator"))
        uids = [each.decode() for each in await self._client.hkeys("uid_recip_keys_map")]
        if ignore in uids and len(uids) > 1:
            uids.remove(ignore)
        uid = uids[place] if place < len(uids) else uids[0]
        await self._client.set("round_robin_iterator", place + 1 if place + 1 < len(uids) else 0)
        return uid

    async def _assign(self, key: str) -> str:
        uid = await self._new_uid()
        await self._client.hset("recip_key_uid_map", key, uid)
        keys = await self._list(uid)
        if key not in keys:
            keys.append(key)
        await self._write(uid, keys)
        await self._client.hset("uid_recip_key_pending_msg_count", f"{uid}_{key}", 0)
        return uid

    async def _reassign_stale(self, uid: str, key: str) -> str:
        last = await self._client.hget("uid_last_access_map", uid)
        if last:
            seen = datetime.strptime(last.decode(), "%Y-%m-%dT%H:%M:%SZ")
            if datetime.now() - seen < _STALE:
                return uid
        keys, found = await self._list(uid), uid
        counts = [
            await self._client.hget("uid_recip_key_pending_msg_count", f"{uid}_{each}")
            for each in keys
        ]
        if not any(int(each or 0) >= 1 for each in counts):
            return uid
        for each in keys:
            other = await self._reassign(uid, each)
            found = other if each == key else found
        if not await self._list(uid):
            await self._client.hdel("uid_recip_keys_map", uid)
        return found

    async def _reassign(self, old: str, key: str) -> str:
        uid = await self._new_uid(ignore=old)
        former, keys = await self._list(old), await self._list(uid)
        await self._write(old, [each for each in former if each != key])
        field = f"{old}_{key}"
        count = int(await self._client.hget("uid_recip_key_pending_msg_count", field) or 0)
        await self._client.hdel("uid_recip_key_pending_msg_count", field)
        await self._client.hset("recip_key_uid_map", key, uid)
        await self._write(uid, [*keys, key])
        if count:
            await self._client.hincrby("uid_recip_key_pending_msg_count", f"{uid}_{key}", count)
        return uid

    async def _list(self, uid: str) -> list[str]:
        written = await self._client.hget("uid_recip_keys_map", uid)
        found: list[str] = json.loads(base64.urlsafe_b64decode(written)) if written else []
        return found

    async def _write(self, uid: str, keys: list[str]) -> None:
        written = base64.urlsafe_b64encode(json.dumps(keys).encode())
        await self._client.hset("uid_recip_keys_map", uid, written)
