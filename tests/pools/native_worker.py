"""A process that works for a pool by its verbs: takes, writes down what it got, acknowledges.

python -m tests.pools.native_worker <socket of the store> <uid>
"""

from __future__ import annotations

import asyncio
import sys

from tests.helpers.store_faults import address_of
from waystation.pools import Mail, Members
from waystation.pools.held import Taken
from waystation.pools.names import Place
from waystation.pools.terms import Terms
from waystation.runtime.ids import RandomIds
from waystation.store.client import Store

PLACE = Place("default", "work")
TERMS = Terms(stale_ms=2_000)
LEASE_MS = 5_000


async def work(store: Store, uid: str) -> None:
    """For ever."""
    members, mail, identity = Members(store), Mail(store), RandomIds()
    session = await members.register(PLACE, TERMS, uid, nonce=identity.token(8))
    sys.stdout.write(f"{uid}\n")
    sys.stdout.flush()
    while True:
        taken: list[Taken] = (
            await mail.take(
                PLACE,
                TERMS,
                session,
                token=identity.token(8),
                most=20,
                bytes_max=1_000_000,
                lease_ms=LEASE_MS,
            )
        ).items
        if not taken:
            await asyncio.sleep(0.02)
        while taken:
            for each in taken:
                await store.call(
                    "RPUSH", f"played.{each.key}", b"%b %b" % (uid.encode(), each.packed)
                )
            acked = await mail.ack(PLACE, TERMS, session, taken, next_lease_ms=LEASE_MS)
            taken = [each.next for each in acked if each.next is not None]


if __name__ == "__main__":
    asyncio.run(work(Store(address_of(sys.argv[1])), sys.argv[2]))
