"""The store: a Valkey or Redis server, reached by one client that shares round trips.

Everything above talks to the server through `Store` alone, names its keys in `keys.py`, and
changes state by scripts alone.
"""

from __future__ import annotations

from waystation.store.census import Census
from waystation.store.client import Store
from waystation.store.heartbeat import Heartbeat
from waystation.store.leases import Lease, Leases
from waystation.store.scripts import Script, script
from waystation.store.wakeups import Wakeups

__all__ = ["Census", "Heartbeat", "Lease", "Leases", "Script", "Store", "Wakeups", "script"]
