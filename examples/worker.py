"""A worker that survives its own crashes: work first, acknowledge after, be idempotent by id.

Run `waystation dev` in another terminal first, or set WAYSTATION_URL. A second run within half
an hour finds everything published and acknowledged already.
"""

import sqlite3

from waystation import Waystation

ledger = sqlite3.connect(":memory:")
ledger.execute("CREATE TABLE payment (id TEXT PRIMARY KEY, total REAL)")


def pay(message_id: str, total: float) -> None:
    """The same message twice changes nothing: its id is the key."""
    with ledger:
        ledger.execute("INSERT OR IGNORE INTO payment VALUES (?, ?)", (message_id, total))


with Waystation() as station:
    station.channels.subscribe("payments", "ledger")
    for number in range(5):
        station.channels.publish("payments", {"total": number}, message_id=f"p-{number}")

    # A first try that dies after the work and before the acknowledgement…
    for message in station.channels.fetch("payments", "ledger").messages:
        pay(message.id, message.content["total"])

    # …so the same messages come again, and are settled this time.
    batch = station.channels.fetch("payments", "ledger")
    for message in batch.messages:
        pay(message.id, message.content["total"])
    station.channels.ack("payments", "ledger", batch.handle)

print("payments:", ledger.execute("SELECT count(*), sum(total) FROM payment").fetchone())
