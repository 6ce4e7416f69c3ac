"""Reading the record logs of channels and pools in tests."""

from __future__ import annotations

from waystation.logs import keys
from waystation.logs.records import Kind, RecordEntry, is_record_log, unpack_entry
from waystation.logs.streams import StreamLogs
from waystation.store.client import Store
from waystation.store.dataset import register_history


async def register_reader(store: Store) -> None:
    """Register history as a reader of the data set."""
    await register_history(store, "~history")


async def record_entries(store: Store, kind: Kind) -> list[RecordEntry]:
    """Return the entries of all record logs of a kind, log by log."""
    logs = StreamLogs(store)
    entries: list[RecordEntry] = []
    for log in sorted(await logs.names()):
        if is_record_log(log, kind):
            stored = await store.call("XRANGE", keys.entries(log, 0), "-", "+")
            entries += [unpack_entry(fields[1]) for _, fields in stored]
    return entries


async def unrecorded_events(store: Store, kind: Kind) -> int:
    """Return the number of events that the record logs of a kind count as unrecorded."""
    logs = StreamLogs(store)
    states = [await logs.state(log, 0) for log in await logs.names() if is_record_log(log, kind)]
    return sum(state.unrecorded for state in states)
