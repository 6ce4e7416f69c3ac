"""What mediators of the plugin do to the map: they give keys to agents, as the plugin's relay did.

A mediator writes the plugin's keys without a version, several of them one after the other. What it
did is told by comparing three maps: ours, what we had written, and what is there now.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping


def base_of(
    written: Mapping[str, str] | None,
    ours: Mapping[str, str],
    theirs: Mapping[str, str],
    *,
    ours_was_written: bool,
) -> Mapping[str, str]:
    """What we had written: as we remember, or as can be told from the version that is there.

    Where that is an older one, nobody can tell who made a difference: then ours stays.
    """
    if written is not None:
        return written
    return ours if ours_was_written else {key: uid for key, uid in theirs.items() if key in ours}


def adoptions(
    base: Mapping[str, str],
    ours: Mapping[str, str],
    theirs: Mapping[str, str],
    live: Collection[str],
) -> dict[str, list[str]]:
    """Keys that others gave to agents, by agent; '': to one who cannot have them.

    A key that both sides have moved stays where ours is: messages lie in a list of the key's name,
    whoever reads it.
    """
    found: dict[str, list[str]] = {}
    for key, uid in theirs.items():
        mine = ours.get(key)
        if mine is None:
            if key not in base:
                found.setdefault(uid if uid in live else "", []).append(key)
        elif uid != mine and mine == base.get(key) and uid in live:
            found.setdefault(uid, []).append(key)
    return found
