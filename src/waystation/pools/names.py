"""Names of a pool's keys; what the keys hold is in the catalogue of all keys.

All keys of a pool share its tag, so that whatever changes a key, its worker and its messages is one
script. A project and a name have no dot, so no two pools share a tag.
"""

from __future__ import annotations

import msgspec

#: To whom belongs what waits for a worker; no worker can have this name.
NOBODY = "-"


class Place(msgspec.Struct, frozen=True):
    """A pool: whose keys."""

    project: str
    pool: str
    #: Always 0: to spread a pool is thought of in the names, and not done.
    part: int = 0

    @property
    def tag(self) -> str:
        """What all its keys begin with."""
        part = f".{self.part}" if self.part else ""
        return f"{{p.{self.project}.{self.pool}{part}}}:"

    @property
    def head(self) -> str:
        """Its counters: the one key that its scripts are given."""
        return self.tag + "head"

    def ready_hint(self, uid: str) -> str:
        """Pub/sub hint: a worker can take something that it could not take before."""
        return f"{self.tag}ready:{uid}"

    def key(self, kind: str) -> str:
        """One of its keys, such as `workers`, or `m:` and a recipient key."""
        return self.tag + kind
