"""Journeys: what became of each message in a subscription, from the hops of the record logs.

A hop leads from where a message was to where it is: from its topic (`m0.3.17`) to retry (`r5`),
from there to dead letters (`d2`), and out (`-`). Only the first one has the offset, so the others
are followed back: twice at most, since nothing leads from dead letters to retry.

Moments are `generation * 2^40 + offset` of the record log: integers that compare, no clock.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

#: Kinds that are about a range of offsets.
_RANGES = ("start", "reset", "passed", "trimmed", "damaged", "opened")
#: A generation in a moment; no log has as many entries.
_GENERATION = 1 << 40
_SHARD = ["dataset", "project", "subscription", "generation", "shard"]
#: What tells a message in a subscription.
POSITION = ["project", "subscription", "storage", "partition", "offset"]


def journeys(deliveries: DataFrame) -> DataFrame:
    """A row for each message that a subscription has taken from its topic, in each incarnation.

    `begun` and `settled` are moments; `left` counts how often it was taken from the topic and
    `ends` how often it was settled; `retry` and `letter`: its numbers in retry and among dead
    letters, where it had them; `grouped`: the order of its group was kept.
    """
    known = followed(deliveries)
    ended = f.col("now") == "-"
    # A dead letter that nothing waits behind is settled for its group.
    settles = ended | (f.col("kind") == "dead")
    return known.groupBy(*POSITION, "incarnation").agg(
        f.min(f.col("generation") * _GENERATION + f.col("begun_after")).alias("begun"),
        f.min(f.when(settles, f.col("generation") * _GENERATION + f.col("log_offset"))).alias(
            "settled"
        ),
        f.count_if(f.col("was").startswith("m")).alias("left"),
        f.count_if(ended).alias("ends"),
        _number_in("r").alias("retry"),
        _number_in("d").alias("letter"),
        # Not the group itself: with a text in it, Spark would sort instead of hashing.
        f.bool_or(f.col("group").isNotNull()).alias("grouped"),
        f.max("generation").alias("generation"),
        f.max("shard").alias("shard"),
    )


def _number_in(queue: str) -> Column:
    """The number that a message had in a queue; it is never in the same one twice."""
    number = f.substring("now", 2, 20).cast("bigint")
    return f.max(f.when(f.col("now").startswith(queue), number))


def strays(deliveries: DataFrame) -> DataFrame:
    """Hops from a place where no message ever came."""
    hops = _hops(deliveries)
    moved = hops.where("not was like 'm%'")
    places = _entered(hops).withColumnRenamed("place", "was").select(*_SHARD, "was")
    return moved.join(places, [*_SHARD, "was"], "anti")


def ranges(deliveries: DataFrame) -> DataFrame:
    """What was done to ranges: kind, and from which offset up to which."""
    return (
        deliveries.where(f.col("kind").isin(*_RANGES) & f.col("storage").isNotNull())
        .withColumn("to", f.element_at(f.split("now", r"\."), -1).cast("bigint"))
        .select(*POSITION, "incarnation", "kind", "to", "topic", "generation", "shard")
    )


def _hops(deliveries: DataFrame) -> DataFrame:
    """Rows that are about one message."""
    return deliveries.where(~f.col("kind").isin(*_RANGES) & ~f.col("malformed"))


def _entered(hops: DataFrame) -> DataFrame:
    """Where messages came to, and from where."""
    return hops.where("now rlike '^[rd]' and now <> was").select(
        *_SHARD,
        f.col("now").alias("place"),
        f.col("was").alias("before"),
        *(f.col(name).alias(f"first_{name}") for name in (*POSITION[2:], "incarnation")),
    )


def followed(deliveries: DataFrame) -> DataFrame:
    """Hops with the offset and the incarnation of the first hop of their message."""
    hops = _hops(deliveries)
    entered = _entered(hops)
    # From dead letters over retry to the topic: the second step back, where one is needed.
    second = entered.where("before like 'm%'").select(
        *_SHARD,
        f.col("place").alias("before"),
        *(
            f.col(f"first_{name}").alias(f"second_{name}")
            for name in (*POSITION[2:], "incarnation")
        ),
    )
    origins = entered.join(second, [*_SHARD, "before"], "left").select(
        *_SHARD,
        f.col("place").alias("was"),
        *(
            f.coalesce(
                f.when(f.col("before").startswith("m"), f.col(f"first_{name}")),
                f.col(f"second_{name}"),
            ).alias(f"from_{name}")
            for name in (*POSITION[2:], "incarnation")
        ),
    )
    later = (
        hops.where("not was like 'm%'")
        .join(origins, [*_SHARD, "was"])
        .where("from_offset is not null")
    )
    for name in (*POSITION[2:], "incarnation"):
        later = later.withColumn(name, f.col(f"from_{name}"))
    return hops.where("was like 'm%'").unionByName(later.select(*hops.columns))
