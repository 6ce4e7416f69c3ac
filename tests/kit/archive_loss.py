"""The model of one transaction on a store that loses its last writes, once: a crash, or a backup.

The archive has all that it ever took, so its row may be newer than the store. What the store has
counts then, and must reach the archive all the same; what it does not have is what the archive has.
A row of something that was alive, which the store does not know any more, is the end: `alive`.

Archivers and loaders begin anew. A crash may lose a second, and what an archiver removes was a
minute old when it was read; who puts a backup in place ends all nodes before, since a confirm from
before it could meet the same version of another content.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tests.kit.archive_model import ARCHIVERS, Rules, World, flaw, steps

#: Numbers matter here, not their order alone: so there is a bound.
VERSION_MAX = 4


class Lossy(NamedTuple):
    """A world, and the store as it may be again."""

    world: World
    past: World | None = None


def lossy_steps(now: Lossy, rules: Rules) -> Iterator[tuple[str, Lossy]]:
    """All that can happen next; of two archivers and two loaders of a kind, one does it all."""
    world, past = now
    if is_over(world):
        return
    for name, after in steps(world, rules):
        if name not in _OF_OTHERS and _is_small(after):
            yield name, Lossy(_found_again(_renumbered(after)), past)
    if past is None and not world.late:
        yield "backup", Lossy(world, world)
    elif past is not None:
        yield "loss", Lossy(_lost(world, past))


#: The second archiver, the third loader.
_OF_OTHERS = {"read1", "miss2"}


def _is_small(world: World) -> bool:
    return world.newest.version <= VERSION_MAX + 2 * world.late


def is_over(world: World) -> bool:
    """The store knows nothing of it, and the archive has it as it was while it was alive."""
    row = world.archived
    return world.late and world.cached is None and row is not None and row.state in "qr"


def _lost(world: World, past: World) -> World:
    newest = past.cached.row if past.cached else world.archived
    assert newest, "what is not in the store is in the archive"
    return past._replace(
        archived=world.archived,
        archivers=(None, None),
        loaders=(None, None, None),
        newest=newest,
        nonce=0,
        nonces=0,
        late=True,
    )


def _found_again(world: World) -> World:
    """What leaves the store unchanged since the loss is what the archive has of it, if newer."""
    row, newest = world.archived, world.newest
    if world.late and world.cached is None and row and not newest.late:
        return world._replace(newest=max(row, newest))
    return world


def _renumbered(world: World) -> World:
    """With the lowest nonces."""
    tickets = {0: 0}
    for nonce in (world.nonce, *(each.nonce for each in world.loaders if each)):
        tickets.setdefault(nonce, len(tickets))
    loaders = tuple(each and each._replace(nonce=tickets[each.nonce]) for each in world.loaders)
    nonce = tickets[world.nonce]
    return world._replace(nonce=nonce, nonces=len(tickets), loaders=loaders)


def lossy_flaw(now: Lossy, rules: Rules) -> str:
    """What is wrong; empty if nothing is."""
    world = now.world
    if not world.late:
        return flaw(world)
    if is_over(world):
        return ""
    row, cached, newest = world.archived, world.cached, world.newest
    leaves = cached is None or cached.mortal
    if leaves and (row is None or (row != newest if newest.late else row < newest)):
        return "lost"
    if cached and cached.row != newest:
        return "an old one in the store"
    if newest.state == "s" and not world.sleeping:
        return "asleep, and nobody wakes it"
    if cached and cached.state in "sc" and not cached.mortal and not _settles(world, rules):
        return "never archived"
    return ""


def _settles(world: World, rules: Rules) -> bool:
    """Whether an archiver that is left alone ends with what the store has."""
    world = world._replace(archivers=tuple(None for _ in ARCHIVERS))
    for name in ("read0", "upsert0", "confirm0") * 2:
        world = dict(steps(world, rules)).get(name, world)
    return world.archived == world.newest and (world.cached is None or world.cached.mortal)
