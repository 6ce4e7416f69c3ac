"""Rate limits of topics: messages and bytes per second that clients can produce.

Each limit is a token bucket with a capacity of one second of its rate. A new bucket is full. The
limiter admits a request if all buckets of the topic have credit. It then debits the size of the
request, which can exceed the credit and leave a debt. The bucket admits no further request until
the debt is paid. Therefore the limiter admits messages larger than the capacity and still keeps the
average rate.

The limiter admits or rejects a batch atomically. A part of a batch could break the order of a
group, and a client that reads only the status would lose the rest.

Each process enforces its share of the limit without communication with the other processes. Rate
limits protect the server. They are not an accounting: if the limiter fails, it admits the request
and counts the failure in a metric.
"""

from __future__ import annotations

from math import ceil, isfinite

import msgspec

from waystation.errors import InvalidInputError, RateLimitedError
from waystation.runtime.clock import Clock
from waystation.runtime.logging import logger
from waystation.runtime.metrics import count_family
from waystation.topics.model import TopicDefinition
from waystation.types.topic import RateLimit

#: Capacity of a bucket, in seconds of its rate.
WINDOW_SECONDS = 1
#: Highest valid limits. No store reaches them, so a higher value is a mistake.
_QPS_MAX = 1e7
_BYTES_MAX = 1e12
#: Limit of the topics with buckets. Above it, the limiter drops the oldest buckets. A topic whose
#: buckets were dropped starts with full ones.
_TOPICS_MAX = 10_000

_log = logger("topics")

topic_messages_over_limit = count_family(
    "waystation_topic_messages_over_limit",
    "Messages above the rate limit of their topic, by its mode (enforced: rejected; shadow:"
    " admitted).",
    label="mode",
)
topic_bytes_over_limit = count_family(
    "waystation_topic_bytes_over_limit",
    "Bytes of messages above the rate limit of their topic, by its mode.",
    label="mode",
)
topic_limit_failures = count_family(
    "waystation_topic_limit_failures",
    "Requests admitted because their rate limit could not be computed.",
).of()


def check_rate(rate: RateLimit) -> None:
    """Raise InvalidInputError if a limit is out of range or missing, or if the limits conflict."""
    for name, value, most in (
        ("qps", rate.qps, _QPS_MAX),
        ("bytes_per_second", rate.bytes_per_second, _BYTES_MAX),
    ):
        if value is not None and not (isfinite(value) and 0 < value <= most):
            raise InvalidInputError(
                f"{name} must be above 0 and at most {most:,.0f}; it is {value:g}.",
                field=f"rate.{name}",
            )
    if rate.mode != "disabled" and rate.qps is None and rate.bytes_per_second is None:
        raise InvalidInputError(
            f"A rate limit in mode '{rate.mode}' must have `qps`, `bytes_per_second` or both.",
            field="rate",
            hint="Set one of them, or set the mode to `disabled`.",
        )
    if rate.qps and rate.bytes_per_second and rate.bytes_per_second < rate.qps:
        raise InvalidInputError(
            f"bytes_per_second ({rate.bytes_per_second:g}) must not be below qps ({rate.qps:g}),"
            " because each message has at least one byte.",
            field="rate.bytes_per_second",
            hint="The size of a message is the bytes of its payload, id, group and headers.",
        )


class RateQuota(msgspec.Struct, frozen=True, kw_only=True):
    """One limit of a topic, and the credit that this process has left after a request."""

    #: `messages` or `bytes`.
    name: str
    #: Messages or bytes per second.
    rate: float
    #: Messages or bytes left; negative: a debt. The process admits a request only if it is above 0.
    credit: float

    @property
    def wait_seconds(self) -> int:
        """Return the seconds until the credit is above 0, rounded up. Return 0 if it is."""
        return 0 if self.credit > 0 else int(-self.credit / self.rate) + 1


class Admission(msgspec.Struct, frozen=True, kw_only=True):
    """Decision about a produce request."""

    #: True if the request is over the limit. In mode `shadow` it is admitted nevertheless.
    over: bool
    #: True if the request is rejected.
    refused: bool
    #: Quotas for the headers of the reply.
    quotas: tuple[RateQuota, ...]

    def require(self) -> None:
        """Raise RateLimitedError if the request was rejected."""
        if self.refused:
            raise RateLimitedError(
                "The rate limit of the topic is exceeded.",
                retry_after_s=self.retry_after_seconds,
            )

    @property
    def retry_after_seconds(self) -> int:
        """Return the seconds after which the client can repeat a rejected request."""
        return max((quota.wait_seconds for quota in self.quotas), default=0)

    @property
    def headers(self) -> tuple[tuple[bytes, bytes], ...]:
        """Return the headers of the IETF draft httpapi-ratelimit-headers.

        A rejected request also gets `Retry-After`.
        """
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
    # The IETF draft allows only integers, so a rate below 1 becomes 1 per several seconds.
    amount, window = (int(quota.rate), 1) if quota.rate >= 1 else (1, ceil(1 / quota.rate))
    unit = ';qu="content-bytes"' if quota.name == "bytes" else ""
    return f'"{quota.name}";q={amount}{unit};w={window}'


def _remaining(quota: RateQuota) -> str:
    if quota.credit > 0:
        # Round up, because a credit below 1 still admits the next request.
        return f'"{quota.name}";r={ceil(quota.credit)}'
    return f'"{quota.name}";r=0;t={quota.wait_seconds}'


class _Bucket:
    """Token bucket of one limit."""

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
    """Buckets of one topic. A change of its rate or of the number of processes replaces them."""

    __slots__ = ("bytes", "messages", "rate", "share")

    def __init__(self, rate: RateLimit, share: int, now: float, earlier: _Buckets | None) -> None:
        self.rate = rate
        self.share = share
        self.messages = _bucket("messages", rate.qps, share, now)
        self.bytes = _bucket("bytes", rate.bytes_per_second, share, now)
        if earlier is not None:
            # Carry the credit over, because a change of the rate must not add credit or cancel
            # debt.
            _carry(earlier.messages, self.messages, now)
            _carry(earlier.bytes, self.bytes, now)


def _bucket(name: str, rate: float | None, share: int, now: float) -> _Bucket | None:
    return None if rate is None else _Bucket(name, rate / share, now)


def _carry(earlier: _Bucket | None, bucket: _Bucket | None, now: float) -> None:
    if earlier is not None and bucket is not None:
        earlier.refill(now)
        bucket.credit = min(bucket.credit, earlier.credit)


class RateLimiter:
    """Admits or rejects produce requests by the rate limits of their topics.

    The state is the buckets of each topic.
    """

    def __init__(self, *, clock: Clock, processes: int = 1) -> None:
        #: Number of processes that share each limit.
        self.processes = processes
        self._clock = clock
        self._buckets: dict[tuple[str, str], _Buckets] = {}
        self._failed = False

    def share_among(self, processes: int) -> None:
        """Set the number of processes that share each limit."""
        self.processes = processes

    def admit(self, topic: TopicDefinition, *, messages: int, size: int) -> Admission | None:
        """Subtract a request from the buckets of its topic, or reject it if one has no credit.

        Return None if rate limits are disabled for the topic, or if the limiter failed.
        """
        if topic.options.rate.mode == "disabled":
            return None
        try:
            return self._admit(topic, messages, size)
        except Exception as error:
            # Admit the request, because an error of the limiter must not stop producers.
            topic_limit_failures.inc()
            if not self._failed:
                self._failed = True
                _log.error("rate limit cannot be checked", error=error, topic=topic.name)
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
            topic_messages_over_limit.of(rate.mode).inc(messages)
            topic_bytes_over_limit.of(rate.mode).inc(size)
        else:
            if buckets.messages is not None:
                buckets.messages.credit -= messages
            if buckets.bytes is not None:
                buckets.bytes.credit -= size
        if rate.mode != "enforced":
            # Mode `shadow` is a trial. Return no headers, because clients would slow down on them.
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
