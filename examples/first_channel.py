"""A channel from end to end: subscribe, publish once, fetch, acknowledge.

Run `waystation dev` in another terminal first, or set WAYSTATION_URL. A second run within half
an hour finds everything published and acknowledged already.
"""

from waystation import Waystation

with Waystation() as station:
    station.channels.subscribe("orders", "billing")
    station.channels.publish("orders", {"total": 12.50}, message_id="order-7")
    station.channels.publish("orders", {"total": 99.99}, message_id="order-7")  # a repetition

    batch = station.channels.fetch("orders", "billing", timeout=5)
    for message in batch.messages:
        print(message.id, message.content)
    station.channels.ack("orders", "billing", batch.handle)

    print("unread:", len(station.channels.fetch("orders", "billing").messages))
