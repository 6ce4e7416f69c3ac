"""Connecting: tries until a server has answered, with growing pauses, and hands over a ready wire.

Ready means: authenticated, the right database, all scripts loaded, and the server has the data set
that this process works with. Each attempt is bounded in time. A wire that was not handed over is
closed, also when the attempt was cancelled.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

from waystation.errors import StoreDataLostError, StoreError, StoreReplyError
from waystation.store.address import Address
from waystation.store.connection import Call, Connection
from waystation.store.data_set import DataSet
from waystation.store.scripts import registered_scripts

_PAUSE_SECONDS_MIN = 0.01
_PAUSE_SECONDS_MAX = 1.0


async def connect(
    address: Address,
    *,
    variant: int,
    attempt_seconds_max: float,
    on_lost: Callable[[Connection, list[Call]], None],
    on_problem: Callable[[str], None],
    data_set: DataSet,
    on_data_lost: Callable[[StoreDataLostError], None],
    rng: random.Random,
) -> Connection:
    """Return a connection that was alive a moment ago; tell every failure to `on_problem`.

    A server without the data set is told to `on_data_lost` instead, and asked again after a pause.
    """
    pause = _PAUSE_SECONDS_MIN
    while True:
        connection = Connection(on_lost=on_lost)
        try:
            async with asyncio.timeout(attempt_seconds_max):
                await connection.open(address)
                data_set.check(address, await connection.ask(data_set.questions(address)))
                await _load_scripts(connection, variant)
            if not connection.closing:
                return connection
            # It died after its last word to us and before this task had its turn.
            on_problem("the connection was lost")
        except StoreDataLostError as error:
            connection.abort()
            on_data_lost(error)
        except (OSError, UnicodeError, StoreError) as error:
            connection.abort()
            on_problem(str(error) or type(error).__name__)
        except BaseException:
            connection.abort()
            raise
        # Spread out, so that processes that lost the same store do not come back as one.
        await asyncio.sleep(pause * (0.5 + rng.random()))
        pause = min(pause * 2, _PAUSE_SECONDS_MAX)


async def _load_scripts(connection: Connection, variant: int) -> None:
    """Load the scripts that the server lacks, so that NOSCRIPT stays a rare repair."""
    scripts = registered_scripts()
    if not scripts:
        return
    hashes = [each.shas[variant] for each in scripts]
    (known,) = await connection.run([("SCRIPT", "EXISTS", *hashes)])
    if not isinstance(known, list) or len(known) != len(scripts):
        raise StoreReplyError("the store does not tell which scripts it has")
    missing = [each for each, is_known in zip(scripts, known, strict=True) if not is_known]
    await connection.run([("SCRIPT", "LOAD", each.sources[variant]) for each in missing])
