"""Produce limits of topics: so many messages and so many bytes a second.

Each limit is a bucket of credit that holds one second's worth, is full at first and refills with
time. A request is admitted if every bucket of its topic has any credit left, and is then debited
whole: a bucket may go into debt, by one request at most, and admits nothing until it is out of it.
So a message that is larger than a second's worth can pass, and the average holds all the same.

A batch is admitted or refused as a whole. Whoever is refused has had nothing produced and sends
the same request again; a part of it could break the order of a group, and would be lost to clients
that look at the status only.

Each process has its share of a topic's limit, without asking the others. Limits protect the
station, they do not account: where one cannot be computed, the request is admitted and counted.
"""

from __future__ import annotations

from math import ceil, isfinite

import msgspec

from waystation.errors import InvalidInputError, RateLimitedError
from waystation.runtime.clock import Clock
from waystation.runtime.logging import logger
from waystation.telemetry import metrics
from waystation.topics.model import RateLimit, TopicDefinition

#: A bucket holds what its rate gives in so many seconds.
WINDOW_SECONDS = 1
#: Beyond these, a limit is a mistake: no store takes so much.
_QPS_MAX = 1e7
_BYTES_MAX = 1e12
#: Topics whose credit is remembered; to forget one fills it up, and the oldest goes first.
_TOPICS_MAX = 10_000

_log = logger("topics")


def check_rate(rate: RateLimit) -> None:
    """Refuses limits that nobody can mean; for when a topic is created or changed."""
    for name, value, most in (
        ("qps", rate.qps, _QPS_MAX),
        ("bytes_per_second", rate.bytes_per_second, _BYTES_MAX),
    ):
        if value is not None and not (isfinite(value) and 0 < value <= most):
            raise InvalidInputError(
                f"{name} must be more than 0 and at most {most:.0f}.", field=f"rate.{name}"
            )
    if rate.mode != "disabled" and rate.qps is None and rate.bytes_per_second is None:
        raise InvalidInputError(
            f"A limit in mode {rate.mode} needs a bound.",
            field="rate",
            hint="Set qps, bytes_per_second or both.",
        )
    if rate.qps and rate.bytes_per_second and rate.bytes_per_second < rate.qps:
        raise InvalidInputError(
            "bytes_per_second is below one byte for each message that qps allows.",
            field="rate.bytes_per_second",
            hint="A message counts its payload, id, group and headers.",
        )


class RateQuota(msgspec.Struct, frozen=True, kw_only=True):
    """One limit of a topic after a decision: what is left of it, in this process."""

    #: `messages` or `bytes`.
    name: str
    #: Per second.
    rate: float
    #: At or below 0: nothing is admitted.
    credit: float

    @property
    def wait_seconds(self) -> int:
        """After so many whole seconds there is credit again; 0: there is some."""
        return 0 if self.credit > 0 else int(-self.credit / self.rate) + 1


class Admission(msgspec.Struct, frozen=True, kw_only=True):
    """What was decided about a request, and what its client is told."""

    #: Over the limit; in mode `shadow` that is only counted.
    over: bool
    refused: bool
    quotas: tuple[RateQuota, ...]

    def require(self) -> None:
        """Raises RateLimitedError for a request that was refused."""
        if self.refused:
            raise RateLimitedError(
                "More is produced to the topic than its limit allows.",
                retry_after_s=self.retry_after_seconds,
            )

    @property
    def retry_after_seconds(self) -> int:
        """When a refused request can come again."""
        return max((quota.wait_seconds for quota in self.quotas), default=0)

    @property
    def headers(self) -> tuple[tuple[bytes, bytes], ...]:
        """RateLimit fields of the IETF's draft (httpapi-ratelimit-headers), and Retry-After."""
        if not self.quotas:
            return ()
        fields = [
            (b"ratelimit-policy", ", ".join(map(_policy, self.quotas)).encode()),
            (b"ratelimit", ", ".join(map(_remaining, self.quotas)).encode()),
        ]
        if self.refused:
            fields.append((b"retry-after", b"%d" % self.retry_after_seconds))
        return tuple(fields)


def _policy(quota: RateQuota) -> str:
    # The draft knows whole numbers only: less than one a second is one in several seconds.
    amount, window = (int(quota.rate), 1) if quota.rate >= 1 else (1, ceil(1 / quota.rate))
    unit = ';qu="content-bytes"' if quota.name == "bytes" else ""
    return f'"{quota.name}";q={amount}{unit};w={window}'


def _remaining(quota: RateQuota) -> str:
    if quota.credit > 0:
        # Rounded up: with any credit at all the next request is admitted.
        return f'"{quota.name}";r={ceil(quota.credit)}'
    return f'"{quota.name}";r=0;t={quota.wait_seconds}'


class _Bucket:
    """Credit that grows with time, up to one window's worth."""

    __slots__ = ("at", "credit", "name", "rate")

    def __init__(self, name: str, rate: float, now: float) -> None:
        self.name = name
        self.rate = rate
        self.credit = rate * WINDOW_SECONDS
        self.at = now

    def refill(self, now: float) -> None:
        grown = self.credit + (now - self.at) * self.rate
        self.credit = min(grown, self.rate * WINDOW_SECONDS)
        self.at = now


class _Buckets:
    """Those of one topic, for one rate and share."""

    __slots__ = ("bytes", "messages", "rate", "share")

    def __init__(self, rate: RateLimit, share: int, now: float, earlier: _Buckets | None) -> None:
        self.rate = rate
        self.share = share
        self.messages = _bucket("messages", rate.qps, share, now)
        self.bytes = _bucket("bytes", rate.bytes_per_second, share, now)
        if earlier is not None:
            # Another rate is no new credit: what is owed stays owed.
            _carry(earlier.messages, self.messages, now)
            _carry(earlier.bytes, self.bytes, now)


def _bucket(name: str, rate: float | None, share: int, now: float) -> _Bucket | None:
    return None if rate is None else _Bucket(name, rate / share, now)


def _carry(earlier: _Bucket | None, bucket: _Bucket | None, now: float) -> None:
    if earlier is not None and bucket is not None:
        earlier.refill(now)
        bucket.credit = min(bucket.credit, earlier.credit)


class RateLimiter:
    """The limits of all topics, in one process."""

    def __init__(self, *, clock: Clock, processes: int = 1) -> None:
        #: How many processes share each limit; may change at any time.
        self.processes = processes
        self._clock = clock
        self._buckets: dict[tuple[str, str], _Buckets] = {}
        self._failed = False

    def share_among(self, processes: int) -> None:
        """Says among how many processes each limit is shared from now on."""
        self.processes = processes

    def admit(self, topic: TopicDefinition, *, messages: int, size: int) -> Admission | None:
        """Decides about a request with so many messages and bytes; None: nothing is limited."""
        if topic.options.rate.mode == "disabled":
            return None
        try:
            return self._admit(topic, messages, size)
        except Exception as error:
            # A fault of ours must not stop production.
            metrics.topic_limit_failures.inc()
            if not self._failed:
                self._failed = True
                _log.error("limit not computed, request admitted", error=error, topic=topic.name)
            return None

    def _admit(self, topic: TopicDefinition, messages: int, size: int) -> Admission:
        rate = topic.options.rate
        now = self._clock.monotonic()
        buckets = self._of(topic, now)
        over = False
        for bucket in (buckets.messages, buckets.bytes):
            if bucket is not None:
                bucket.refill(now)
                over = over or bucket.credit <= 0
        if over:
            metrics.topic_messages_over_limit.of(rate.mode).inc(messages)
            metrics.topic_bytes_over_limit.of(rate.mode).inc(size)
        else:
            if buckets.messages is not None:
                buckets.messages.credit -= messages
            if buckets.bytes is not None:
                buckets.bytes.credit -= size
        if rate.mode != "enforced":
            # Clients are not told either: they would slow down, and the trial would show nothing.
            return Admission(over=over, refused=False, quotas=())
        quotas = tuple(
            RateQuota(name=bucket.name, rate=bucket.rate, credit=bucket.credit)
            for bucket in (buckets.messages, buckets.bytes)
            if bucket is not None
        )
        return Admission(over=over, refused=over, quotas=quotas)

    def _of(self, topic: TopicDefinition, now: float) -> _Buckets:
        key = (topic.project, topic.name)
        found = self._buckets.get(key)
        rate, share = topic.options.rate, max(1, self.processes)
        if found is not None and found.rate == rate and found.share == share:
            return found
        made = _Buckets(rate, share, now, found)
        if found is None and len(self._buckets) >= _TOPICS_MAX:
            self._buckets.pop(next(iter(self._buckets)))
        self._buckets[key] = made
        return made
