"""Metrics: names that dashboards depend on, counters, histograms and their text form."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator

import waystation.api.server  # noqa: F401 (declares all metrics of a node)
from waystation.runtime.metrics import CountFamily, Histogram, registry

#: Name without `waystation_`, type and labels of all metrics. Dashboards and alerts use them, so
#: add lines, but never change or remove one.
FAMILIES = """
    archive_batch_seconds histogram
    archive_oldest_seconds gauge
    archive_rows counter outcome
    archive_set_aside gauge
    archive_waiting gauge
    callbacks counter outcome
    channel_messages counter outcome
    channel_messages_fetched counter
    channel_messages_lost counter
    channel_polls_waiting gauge
    channel_streams gauge kind
    deliverer_attempts counter result
    delivery_attempts counter result
    delivery_dropped counter
    delivery_failed gauge
    delivery_given_up counter
    delivery_unrecorded counter
    delivery_waiting gauge
    history_failures counter
    history_gap_rows counter cause
    history_lag_rows gauge
    history_lag_seconds gauge
    history_last_batch_rows gauge
    history_last_batch_timestamp_seconds gauge
    history_lost_rows counter
    history_malformed_rows counter
    history_rounds counter
    history_rows counter
    http_request_seconds histogram route
    http_requests counter method,route,status
    http_requests_in_flight gauge
    http_requests_shed counter
    load_seconds histogram
    loads counter outcome
    log_bytes gauge
    log_dropped_messages gauge
    log_partitions_warned gauge policy
    log_trimmed_messages counter
    pool_acked counter pool,outcome
    pool_dead_letters gauge pool
    pool_enqueued counter pool,outcome
    pool_evicted counter pool
    pool_keys gauge pool
    pool_moved_keys counter pool
    pool_nacked counter pool,outcome
    pool_oldest_seconds gauge pool
    pool_pending gauge pool
    pool_workers gauge pool,state
    relay_requests counter door,status
    replies counter kind,event,verdict
    store_calls counter
    store_memory_limit_bytes gauge
    store_memory_used_bytes gauge
    store_reconnects counter
    store_writes counter
    subscription_attempts counter subscription,result
    subscription_dead_bytes gauge subscription,shard
    subscription_dead_messages gauge subscription,shard
    subscription_doubles counter subscription
    subscription_in_flight gauge subscription,shard
    subscription_lag_messages gauge subscription,shard
    subscription_oldest_failure_seconds gauge subscription,shard
    subscription_oldest_seconds gauge subscription,shard
    subscription_parked_groups gauge subscription,shard
    subscription_retry_bytes gauge subscription,shard
    subscription_retry_messages gauge subscription,shard
    subscription_retrying_groups gauge subscription,shard
    subscription_shards gauge state
    topic_bytes_over_limit counter mode
    topic_limit_failures counter
    topic_messages_over_limit counter mode
    transaction_claims counter outcome
    transaction_commits counter outcome
    transaction_due counter outcome
    transaction_due_lag_seconds histogram
    transaction_step_seconds histogram
    transaction_steps counter outcome
    transaction_waiters gauge
    transactions_claimed counter
    transactions_held gauge
    transactions_sleeping gauge
"""


def frozen_families() -> set[str]:
    return {line.strip() for line in FAMILIES.strip().splitlines()}


def declared_families() -> Iterator[str]:
    """Yield the families of the registry as lines of `FAMILIES`."""
    for collector in registry._collector_to_names:
        for metric in collector.collect():
            labels = getattr(metric, "_labelnames", ()) or getattr(collector, "_labelnames", ())
            if not metric.name.startswith("process_"):
                name = metric.name.removeprefix("waystation_")
                yield f"{name} {metric.type} {','.join(labels)}".rstrip()


def test_metric_names_types_and_labels_are_unchanged() -> None:
    declared = sorted(declared_families())

    assert set(declared) == frozen_families()
    assert len(declared) == len(set(declared))


def test_metrics_of_new_process_expose_every_family() -> None:
    program = (
        "import waystation.api.server\n"
        "from waystation.runtime.metrics import exposition\n"
        "print(exposition().decode())"
    )
    text = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    ).stdout

    exposed = re.findall(r"^# TYPE waystation_(\w+ \w+)$", text, re.MULTILINE)
    assert sorted(exposed) == sorted(" ".join(each.split()[:2]) for each in frozen_families())
    helped = re.findall(r"^# HELP waystation_(\w+) \S", text, re.MULTILINE)
    assert sorted(helped) == sorted(each.split()[0] for each in frozen_families())


def test_count_family_shows_each_label_value_after_its_first_use() -> None:
    family = CountFamily("calls", "Calls.", labels=("kind",))
    family.of("read").inc()
    family.of("read").inc(2)
    family.of("write")

    (metric,) = family.collect()
    assert [(each.labels, each.value) for each in metric.samples] == [
        ({"kind": "read"}, 3),
        ({"kind": "write"}, 0),
    ]


def test_histogram_buckets_include_all_smaller_times() -> None:
    times = Histogram((0.1, 1.0))
    for seconds in (0.05, 0.1, 0.5, 7.0):
        times.note(seconds)

    assert times.buckets == [("0.1", 2), ("1.0", 3), ("+Inf", 4)]
    assert times.seconds == 7.65
