"""Pools: messages of one recipient key reach one live worker, and move when it dies."""

from __future__ import annotations

from waystation.pools.assignments import Assignments
from waystation.pools.definition import Pool, PoolOptions
from waystation.pools.mail import Mail
from waystation.pools.members import Members
from waystation.pools.pools import Pools

__all__ = ["Assignments", "Mail", "Members", "Pool", "PoolOptions", "Pools"]
