"""Slots: how many attempts of subscriptions are under way in this process.

Beside what an endpoint has earned (`delivery.Share`) there are two bounds: one of the whole process
and one of each subscription. An endpoint without any attempt may have one, whatever others have.
"""

from __future__ import annotations

from collections.abc import Callable

from waystation.delivery.share import TOTAL_MAX

Wake = Callable[[], None]


class Slots:
    """The attempts of one process."""

    def __init__(self, most: int = TOTAL_MAX) -> None:
        self._most = most
        self.under_way = 0
        self._of: dict[str, int] = {}
        #: Who found no room, in their order; and who was called, with its subscription.
        self._line: dict[str, tuple[str, Wake]] = {}
        self._called: dict[str, str] = {}

    def __repr__(self) -> str:
        return f"<Slots {self.under_way} of {self._most}, {len(self._line)} in line>"

    def take(self, lane: str, subscription: str, *, most: int, alone: bool) -> bool:
        """Takes a slot; `alone`: its endpoint has no attempt under way.

        Those who were called and have not come yet have a slot each.
        """
        used, left = self._of.get(subscription, 0), self._most - self.under_way
        if self._called:
            self._called.pop(lane, None)
            used += list(self._called.values()).count(subscription)
            left -= len(self._called)
        if used >= most or (left <= 0 and not (alone and left > -self._most)):
            return False
        self._of[subscription] = self._of.get(subscription, 0) + 1
        self.under_way += 1
        return True

    def give_back(self, subscription: str) -> None:
        """An attempt has ended, or was not made; whoever waits longest is called."""
        self.under_way -= 1
        self._of[subscription] -= 1
        if not self._of[subscription]:
            del self._of[subscription]
        if self._line:
            self._call_next()

    def wait(self, lane: str, subscription: str, wake: Wake) -> None:
        """Calls when there may be room; who was called comes, or leaves."""
        if lane not in self._called:
            self._line.setdefault(lane, (subscription, wake))

    def leave(self, lane: str) -> None:
        """Does not wait any more, and needs nothing."""
        self._line.pop(lane, None)
        if self._called.pop(lane, None) is not None and self._line:
            self._call_next()

    def _call_next(self) -> None:
        lane = next(iter(self._line))
        subscription, wake = self._line.pop(lane)
        self._called[lane] = subscription
        wake()
