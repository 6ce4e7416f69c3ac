"""Metrics: names that dashboards depend on, counters, histograms and their text form."""

from __future__ import annotations

from waystation.runtime.metrics import CountFamily, Histogram, registry
from waystation.telemetry import metrics

#: Names of all metrics without `waystation_`. Dashboards and alerts use them, so a name is only
#: ever added.
NAMES = """
    archive_batch_seconds archive_oldest_seconds archive_rows archive_set_aside archive_waiting
    callbacks channel_messages channel_messages_fetched channel_messages_lost
    channel_polls_waiting channel_streams deliverer_attempts delivery_attempts delivery_dropped
    delivery_failed delivery_given_up delivery_unrecorded delivery_waiting history_failures
    history_gap_rows history_lag_rows history_lag_seconds history_lost_rows
    history_malformed_rows history_rounds history_rows http_request_seconds http_requests
    http_requests_in_flight http_requests_shed load_seconds loads log_bytes log_dropped_messages
    log_partitions_warned log_trimmed_messages pool_acked pool_dead_letters pool_enqueued
    pool_evicted pool_keys pool_moved_keys pool_nacked pool_oldest_seconds pool_pending
    pool_workers relay_requests replies store_calls store_memory_limit_bytes
    store_memory_used_bytes store_reconnects store_writes subscription_attempts
    subscription_dead_bytes subscription_dead_messages subscription_doubles
    subscription_in_flight subscription_lag_messages subscription_oldest_failure_seconds
    subscription_oldest_seconds subscription_parked_groups subscription_retry_bytes
    subscription_retry_messages subscription_retrying_groups subscription_shards
    topic_bytes_over_limit topic_limit_failures topic_messages_over_limit transaction_claims
    transaction_commits transaction_due transaction_due_lag_seconds transaction_step_seconds
    transaction_steps transaction_waiters transactions_claimed transactions_held
    transactions_sleeping
"""


def test_metric_names_are_unchanged() -> None:
    assert metrics.registry is registry
    declared = {each.name for each in registry.collect() if not each.name.startswith("process_")}

    assert declared == {f"waystation_{name}" for name in NAMES.split()}


def test_count_family_shows_each_label_value_from_first_use() -> None:
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
