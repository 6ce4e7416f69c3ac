"""Whoever keeps the mirror dies at any call: the next one brings everything to where it belongs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.acapy.mirror_world import MirrorWorld
from waystation.catalogue import SqliteCatalogue
from waystation.config import PoolConfig
from waystation.errors import PoolNotFoundError
from waystation.pools import PoolOptions, Pools
from waystation.runtime.clock import Clock
from waystation.store.client import Store
from waystation.store.embedded.server import EmbeddedServer
from waystation.store.pubsub import PubSub
from waystation.testing import CrashPoint, crash_points
from waystation.testing.crash_points import Moment


async def world_at(store: Store, file: Path) -> tuple[MirrorWorld, SqliteCatalogue]:
    """The pool, as another process finds it."""
    catalogue = SqliteCatalogue(file)
    await catalogue.open()
    wakeups = PubSub(store.address)
    pools = Pools(catalogue, store, wakeups, clock=Clock(), settings=PoolConfig())
    try:
        pool = await pools.get("default", "agents")
    except PoolNotFoundError:
        pool = await pools.create("default", "agents", PoolOptions(mirror=True))
    return MirrorWorld(store, None, pools, pool), catalogue


async def prepare(store: Store, file: Path) -> None:
    """Three agents have registered, of whom one is known; messages wait; a mediator was at work."""
    file.unlink(missing_ok=True)
    world, catalogue = await world_at(store, file)
    for key in ("k1", "k2"):
        await world.send(key)
    await world.agent_starts("a")
    await world.step()
    await world.agent_pops("a", "k1", at="t1")
    await world.agent_starts("b", "c")
    await world.store.call("HSET", "recip_key_uid_map", "given", "b")
    await world.mediator_pushes("given", "theirs")
    await world.send("k1")
    await catalogue.close()


async def scenario(store: Store, file: Path) -> None:
    """One step of a reconciler that knows nothing: it registers, adopts, pushes and writes."""
    world, catalogue = await world_at(store, file)
    done = await world.step()
    assert (done.registered, done.adopted, done.pushed, done.written) == (2, 1, 1, 1)
    await catalogue.close()


async def after(store: Store, file: Path) -> None:
    """The next one finds everything, and everything once."""
    world, catalogue = await world_at(store, file)
    for _ in range(2):
        await world.step()
    lists = await world.lists()
    assert set(lists) == {"a", "b", "c"}
    listed = {key: uid for uid, keys in lists.items() for key in keys}
    assert listed == await world.hash("recip_key_uid_map")
    assert listed == {"k1": "a", "k2": "a", "given": "b"}
    assert await world.queue("k1") == ["m-3"]
    assert await world.queue("k2") == ["m-2"]
    assert await world.queue("given") == ["theirs"]
    found = await world.look()
    assert (found.pending, found.keys) == (3, 3)
    counts = await world.hash("uid_recip_key_pending_msg_count")
    assert counts == {"a_k1": "1", "a_k2": "1", "b_given": "1"}
    await catalogue.close()


@pytest.mark.slow
def test_a_death_at_any_call_of_a_step_leaves_what_the_next_one_finishes(
    store_server: EmbeddedServer, tmp_path: Path
) -> None:
    file = tmp_path / "catalogue.db"

    async def look(store: Store, _: CrashPoint) -> None:
        await after(store, file)

    points = crash_points(
        store_server.address,
        lambda store: scenario(store, file),
        look,
        prepare=lambda store: prepare(store, file),
        # After a reply is before the next call.
        moments=(Moment.BEFORE_SEND, Moment.AFTER_SEND),
        varies=True,
    )
    assert len(points) > 2 * 25
