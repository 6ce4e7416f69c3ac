"""The ledger: has written down what came of messages, and draws from the replies what follows.

A message of the topic is acknowledged, and its group may go on, when the reply of its commit says
so, never before: what was not written down has not happened.
"""

from __future__ import annotations

from functools import partial

from waystation.delivery.request import Outcome
from waystation.subscriptions.committer import Committer
from waystation.subscriptions.errand import Errand, attempted, unattempted, unreadable
from waystation.subscriptions.heads import Heads
from waystation.subscriptions.held import Head, Settled, Settlement
from waystation.subscriptions.line import Line
from waystation.subscriptions.means import ShardMeans
from waystation.subscriptions.reader import Reader
from waystation.subscriptions.states import Verdict
from waystation.subscriptions.tenure import Tenure
from waystation.subscriptions.verdicts import DONE, Decided, verdict_of
from waystation.subscriptions.window import Waiting


class Ledger:
    """What one owner of a shard writes down."""

    def __init__(
        self,
        tenure: Tenure,
        means: ShardMeans,
        line: Line,
        heads: Heads,
        reader: Reader,
        committer: Committer,
    ) -> None:
        self._tenure = tenure
        self._means = means
        self._line = line
        self._heads = heads
        self._reader = reader
        self._committer = committer
        self.use()

    def use(self) -> None:
        """A newer version of the subscription."""
        self._schedule = self._tenure.subscription.options.retry.schedule

    # -- Coming in ---------------------------------------------------------------------------

    def attempt(
        self, errand: Errand, outcome: Outcome, *, begun_ms: int, begun_after: int, endpoint: str
    ) -> Decided:
        """A request has ended."""
        means, parcel = self._means, errand.parcel
        assert parcel is not None
        done = outcome.succeeded
        decided = DONE if done else verdict_of(outcome, parcel, self._schedule, means.rng)
        means.counts.attempted(self._tenure.place, decided.verdict)
        if decided.verdict is Verdict.RELEASE and errand.waiting is not None:
            # It was never taken from the topic: there is nothing to be written down.
            self._line.put_back(errand.waiting)
            return decided
        item = attempted(
            errand,
            decided,
            outcome,
            begun_ms=begun_ms,
            ended_ms=means.clock.now_ms(),
            begun_after=begun_after,
            node=means.node,
            endpoint=endpoint,
            topic=self._tenure.subscription.topic,
            policy=self._tenure.terms.policy,
        )
        if errand.waiting is not None:
            self._submit(item, errand.waiting)
        elif errand.head is not None:
            self.settle_head(item, errand.head)
        return decided

    def push(self, waiting: Waiting, verdict: Verdict) -> None:
        """A message of the topic goes behind others, or is put off until it is due."""
        assert waiting.envelope is not None
        terms = self._tenure.terms
        item = unattempted(
            waiting, waiting.envelope, verdict, incarnation=terms.incarnation, policy=terms.policy
        )
        self._submit(item, waiting)

    def bury(self, waiting: Waiting) -> None:
        """A message of the topic that cannot be read is a dead letter."""
        terms, at_ms = self._tenure.terms, self._means.clock.now_ms()
        item = unreadable(waiting, incarnation=terms.incarnation, policy=terms.policy, at_ms=at_ms)
        self._submit(item, waiting)

    def settle_head(self, item: Settlement, head: Head) -> None:
        """What is made of a head."""
        self._committer.submit(item, partial(self._head_settled, head, item))

    def _submit(self, item: Settlement, waiting: Waiting) -> None:
        self._committer.submit(item, partial(self._main_settled, waiting, item))

    # -- Coming back -------------------------------------------------------------------------

    def _main_settled(self, waiting: Waiting, item: Settlement, settled: Settled) -> None:
        self._reader.acknowledge(waiting)
        self._line.ended(waiting.group, settled.state)
        if item.verdict is not Verdict.DONE or settled.outcome != "done":
            self._follow_up(item, settled)

    def _head_settled(self, head: Head, item: Settlement, settled: Settled) -> None:
        self._heads.ended(head, settled.state)
        if settled.next is not None:
            self._heads.add(settled.next)
        self._follow_up(item, settled)

    def _follow_up(self, item: Settlement, settled: Settled) -> None:
        now = self._means.clock.monotonic
        match item.verdict:
            case Verdict.AGAIN:
                self._heads.expect(now() + item.wait_ms / 1000)
            case Verdict.LATE:
                self._heads.expect(now() + (item.wait_ms - self._tenure.store_ms()) / 1000)
            case Verdict.RELEASE:
                self._heads.expect(now())
            case _ if settled.outcome != "done":
                self._means.counts.doubled(self._tenure.place)
