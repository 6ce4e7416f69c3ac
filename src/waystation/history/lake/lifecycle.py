"""The lifecycle of each message in a subscription, from the transitions in its record logs.

A transition leads from one place of a message to the next: from its topic (`m0.3.17`) to the retry
queue (`r5`), from there to the dead letters (`d2`), and out (`-`). Only the transition that leaves
the topic has the offset of the message. The offset of a later one is found by following the places
back, in two steps at most, because no transition leads from the dead letters to the retry queue.

The audit compares moments, `generation * 2^40 + offset` of the record log, instead of times,
because they are integers that no clock can change.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

#: Kinds of rows about a range of offsets.
_RANGES = ("start", "reset", "passed", "trimmed", "damaged", "opened")
#: Distance of two generations in a moment. No log has as many entries.
_GENERATION = 1 << 40
_SHARD = ["dataset", "project", "subscription", "generation", "shard"]
#: Columns that identify a message in a subscription.
POSITION = ["project", "subscription", "storage", "partition", "offset"]
#: Columns that only the transition from the topic has.
_ORIGIN = (*POSITION[2:], "incarnation")


def lifecycles(deliveries: DataFrame) -> DataFrame:
    """Return a row for each message and incarnation in which a subscription took it.

    `begun` and `settled` are moments; `left` counts how often the message was taken from its topic,
    `ends` how often it was settled; `retry` and `letter` are its numbers in the retry queue and
    among the dead letters; `grouped` is true if the subscription kept the order of its group.
    """
    transitions = with_origin(deliveries)
    ended = f.col("to_place") == "-"
    # A dead letter settles the message for its group, because no other message waits behind it.
    settles = ended | (f.col("kind") == "dead")
    return transitions.groupBy(*POSITION, "incarnation").agg(
        f.min(f.col("generation") * _GENERATION + f.col("begun_after")).alias("begun"),
        f.min(f.when(settles, f.col("generation") * _GENERATION + f.col("log_offset"))).alias(
            "settled"
        ),
        f.count_if(f.col("from_place").startswith("m")).alias("left"),
        f.count_if(ended).alias("ends"),
        _number_in("r").alias("retry"),
        _number_in("d").alias("letter"),
        # Not the group itself, because Spark sorts instead of hashing if a text is aggregated.
        f.bool_or(f.col("group").isNotNull()).alias("grouped"),
        f.max("generation").alias("generation"),
        f.max("shard").alias("shard"),
    )


def unknown_origins(deliveries: DataFrame) -> DataFrame:
    """Return the transitions from a place that no message ever entered."""
    transitions = _transitions(deliveries)
    moved = transitions.where("not from_place like 'm%'")
    places = (
        _entries(transitions).withColumnRenamed("place", "from_place").select(*_SHARD, "from_place")
    )
    return moved.join(places, [*_SHARD, "from_place"], "anti")


def entries(deliveries: DataFrame) -> DataFrame:
    """Return each place that a message entered, with the log that says so."""
    return (
        _transitions(deliveries)
        .where("to_place rlike '^[rd]' and to_place <> from_place")
        .select("log", "log_partition", f.col("to_place").alias("place"))
    )


def ranges(deliveries: DataFrame) -> DataFrame:
    """Return the rows about ranges of offsets, with kind, first offset and the offset behind."""
    return (
        deliveries.where(f.col("kind").isin(*_RANGES) & f.col("storage").isNotNull())
        .withColumn("to", f.element_at(f.split("to_place", r"\."), -1).cast("bigint"))
        .select(*POSITION, "incarnation", "kind", "to", "topic", "generation", "shard")
    )


def with_origin(deliveries: DataFrame) -> DataFrame:
    """Return the transitions with the offset and the incarnation of their message."""
    transitions = _transitions(deliveries)
    entries = _entries(transitions)
    # The second step back, from the dead letters over the retry queue to the topic.
    second = entries.where("before like 'm%'").select(
        *_SHARD,
        f.col("place").alias("before"),
        *(f.col(f"first_{name}").alias(f"second_{name}") for name in _ORIGIN),
    )
    origins = entries.join(second, [*_SHARD, "before"], "left").select(
        *_SHARD,
        f.col("place").alias("from_place"),
        *(
            f.coalesce(
                f.when(f.col("before").startswith("m"), f.col(f"first_{name}")),
                f.col(f"second_{name}"),
            ).alias(f"from_{name}")
            for name in _ORIGIN
        ),
    )
    later = (
        transitions.where("not from_place like 'm%'")
        .join(origins, [*_SHARD, "from_place"])
        .where("from_offset is not null")
    )
    for name in _ORIGIN:
        later = later.withColumn(name, f.col(f"from_{name}"))
    first = transitions.where("from_place like 'm%'")
    return first.unionByName(later.select(*transitions.columns))


def _transitions(deliveries: DataFrame) -> DataFrame:
    """Return the rows about one message each."""
    return deliveries.where(~f.col("kind").isin(*_RANGES) & ~f.col("malformed"))


def _entries(transitions: DataFrame) -> DataFrame:
    """Return each place that a message entered, with the place before it."""
    return transitions.where("to_place rlike '^[rd]' and to_place <> from_place").select(
        *_SHARD,
        f.col("to_place").alias("place"),
        f.col("from_place").alias("before"),
        *(f.col(name).alias(f"first_{name}") for name in _ORIGIN),
    )


def _number_in(queue: str) -> Column:
    """Return the number of a message in a queue, which it enters once at most."""
    number = f.substring("to_place", 2, 20).cast("bigint")
    return f.max(f.when(f.col("to_place").startswith(queue), number))
