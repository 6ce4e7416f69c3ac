"""What a worker is bound by; its settings."""

from __future__ import annotations

import msgspec


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Of one worker. A node group can be told others of the first three."""

    #: Steps that are called at once.
    workers: int = 100
    #: Transactions that are held beyond these, so that no slot waits for the store.
    prefetch: int = 200
    lease_ms: int = 10_000
    #: Begun rescues after which a transaction is given up.
    rescues_max: int = 3
    #: What steps get to end when the process is to end.
    grace_seconds: float = 5.0
    #: What a step that runs gets to end when its transaction was cancelled, or is over its time.
    cancel_grace_ms: int = 30_000
    #: The most that a step can ask for by its `timeout`; without one it has `TIMEOUT_SECONDS`.
    step_seconds_max: float = 3600.0
    #: Of a packed state.
    state_bytes_max: int = 1_048_576
    #: Pipelines that call each other at one time, by Child and by Parallel together.
    depth_max: int = 32
    #: Descendants that one Parallel of a transaction without a parent may have, at all levels.
    descendants_max: int = 100_000
    #: A step that has not ended so long after its time never will: its lease is let go.
    hung_seconds: float = 10.0
