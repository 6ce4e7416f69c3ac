"""A key goes from one agent to another: nobody has it for as long as the former may still read it.

Lists of messages are named by the key alone, so two agents that both have a key would take turns,
and its order would be lost. An agent goes round the keys that it had found in its list when the
round began; so a key is first taken off the former's list, then one of its rounds is waited for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping


class Handover:
    """Keys that nobody gets yet. It forgets with its process: who comes next waits for nothing."""

    def __init__(self, seconds: Callable[[], float]) -> None:
        self._seconds = seconds
        self._free_at: dict[str, float] = {}

    def __repr__(self) -> str:
        return f"<Handover [{len(self._free_at)} keys wait]>"

    def wait_seconds(self) -> float | None:
        """Until the next key can be given; None: none waits."""
        if not self._free_at:
            return None
        return max(0.0, min(self._free_at.values()) - self._seconds())

    def given(
        self,
        wanted: Mapping[str, frozenset[str]],
        written: Mapping[str, frozenset[str]],
        *,
        reading: frozenset[str],
        key_seconds: float,
    ) -> dict[str, frozenset[str]]:
        """Of the keys that agents are to have, those that they can be given now.

        `written` is what their lists have; `reading` are those agents that may read theirs.
        """
        now = self._seconds()
        holders = {key: uid for uid in reading for key in written.get(uid, ())}
        free_at: dict[str, float] = {}
        found = {}
        for uid, keys in wanted.items():
            new = keys - written.get(uid, frozenset())
            for key in new:
                former = holders.get(key, uid)
                if former != uid:
                    rounds = len(written[former]) + 1
                    free_at[key] = now + rounds * key_seconds
                elif self._free_at.get(key, now) > now:
                    free_at[key] = self._free_at[key]
            found[uid] = keys - free_at.keys()
        self._free_at = free_at
        return found
