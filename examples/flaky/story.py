"""A topic, an endpoint that fails, and what is delivered in the end: everything, in its order.

Run `waystation dev` in one terminal and `python endpoint.py` in another first. It takes a while:
the first message is tried four times, 3, 6 and 12 seconds apart, until its group is parked.
"""

from waystation import Waystation

ws = Waystation("http://127.0.0.1:7070")
ws.topics.create("orders", partitions=4, grouped=True)
ws.subscriptions.create(
    "billing",
    topic="orders",
    endpoint="http://127.0.0.1:9000/hook",
    retry={"attempts": 3},
    poison="park",
)
for n in range(3):
    receipt = ws.topics.produce("orders", {"n": n}, group="order-17", id=f"o17-{n}")
print(receipt.partition, receipt.offset, receipt.durability)
ws.subscriptions.wait("billing", group="order-17", state="parked")
print(ws.subscriptions.redrive("billing", group="order-17", dry_run=True).count)  # 3
ws.subscriptions.redrive("billing", group="order-17").wait()
