"""Orders for the Spark examples: a topic with a schema, a pipeline that pays, and 300 messages.

Run `waystation dev --app orders:app` in this folder, then `python orders.py` in another terminal.
`python orders.py 300` produces the next 300 orders.
"""

import sys

from waystation import App, Fail, Waystation
from waystation.client import NewMessage

SCHEMA = {
    "type": "object",
    "properties": {
        "customer": {"type": "string"},
        "total": {"type": "number"},
        "express": {"type": "boolean"},
        "items": {"type": "array", "items": {"type": "string"}},
    },
    "required": ["customer", "total"],
}

app = App()


@app.step("payment/charge")
async def charge(ctx, order: dict):
    return Fail("above the limit") if order["total"] > 95 else {"paid": order["total"]}


app.pipeline("payment", ["payment/charge"])


def order(number: int) -> NewMessage:
    customer = f"customer-{number % 3}"
    content = {"customer": customer, "total": number % 100, "express": number % 7 == 0}
    content["items"] = ["tea", "pot"][: number % 3]
    return NewMessage(content, id=f"order-{number}", group=customer)


def produce(first: int = 0) -> None:
    with Waystation() as station:
        if "orders" not in [topic.name for topic in station.topics.list()]:
            station.topics.create(
                "orders", partitions=2, grouped=True, dedup_seconds=3600, json_schema=SCHEMA
            )
            # Each order starts a transaction of the pipeline.
            station.subscriptions.create("payments", topic="orders", endpoint="pipeline:payment")
        station.topics.produce_many("orders", [order(first + n) for n in range(300)])


if __name__ == "__main__":
    produce(*map(int, sys.argv[1:]))
