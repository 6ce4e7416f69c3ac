"""A topic from end to end: produce many messages in order, repeat one, look into it, compress.

Run `waystation dev` in another terminal first, or set WAYSTATION_URL.
"""

import gzip

from waystation import Waystation


class Zipped:
    """A codec: what it makes of a payload is all that the station ever sees."""

    name = "gzip"
    encode = staticmethod(gzip.compress)
    decode = staticmethod(gzip.decompress)


with Waystation() as station:
    topics = station.topics
    topics.create("shop-orders", partitions=4, grouped=True, dedup_seconds=3600)

    with topics.producer("shop-orders") as producer:
        sent = [
            producer.send({"number": number}, id=f"order-{number}", group=f"customer-{number % 3}")
            for number in range(300)
        ]
    print("produced:", sum(not each.result().duplicate for each in sent))

    numbers = [
        each.content["number"] for each in topics.messages("shop-orders", group="customer-1")
    ]
    print(f"customer-1: {len(numbers)} orders, in order: {numbers == sorted(numbers)}")

    again = topics.produce("shop-orders", {"number": 7}, id="order-7", group="customer-1")
    print("order-7 again:", "duplicate" if again.duplicate else "produced twice")

    topics.produce("shop-orders", {"card": "4111…"}, group="secret", codec=Zipped())
    (plain,) = topics.messages("shop-orders", group="secret")
    (opened,) = topics.messages("shop-orders", group="secret", codec=Zipped())
    encodings = [value for name, value in plain.headers if name == "content-encoding"]
    print(f"without the codec: {encodings}, with it: {opened.content}")
