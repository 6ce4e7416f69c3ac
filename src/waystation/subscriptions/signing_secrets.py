"""The signing secrets of subscriptions: in the catalogue alone, apart from the definitions.

So they are in no working copy, and in nothing that is shown. A secret is made with its subscription
and replaced by a rotation: the one before signs beside it for a day. One that is created anew under
a name does not inherit the secrets of the one before.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from waystation.catalogue import Catalogue, DefinitionRecord
from waystation.delivery.signing import Secret, new_secret, rotate
from waystation.errors import ConflictError
from waystation.runtime.clock import Clock
from waystation.runtime.ids import IdSource
from waystation.subscriptions.definition import Subscription

_KIND = "subscription-secret"
_ATTEMPTS_MAX = 20


class _Kept(msgspec.Struct, frozen=True):
    """The row of a subscription's secrets."""

    #: Of the subscription that they belong to.
    generation: int
    secrets: tuple[Secret, ...]


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(_Kept).decode


class SigningSecrets:
    """Makes, reads, rotates and forgets secrets."""

    def __init__(self, catalogue: Catalogue, identity: IdSource, *, clock: Clock) -> None:
        self._catalogue = catalogue
        self._identity = identity
        self._clock = clock

    async def get(self, subscription: Subscription) -> tuple[Secret, ...]:
        """Those that sign now, the one in force first; none before there is one."""
        record = await self._record(subscription)
        now_ms = self._clock.now_ms()
        kept = _of_generation(record, subscription)
        return tuple(each for each in kept if not each.until_ms or each.until_ms > now_ms)

    async def provide(self, subscription: Subscription) -> None:
        """Makes the first secret, unless there is one."""
        text = new_secret(self._identity)
        await self._change(subscription, lambda kept: kept or (Secret(text),))

    async def rotate(self, subscription: Subscription) -> str:
        """Puts a new secret in force, and tells it."""
        text, now_ms = new_secret(self._identity), self._clock.now_ms()
        await self._change(subscription, lambda kept: rotate(kept, text, now_ms=now_ms))
        return text

    async def forget(self, subscription: Subscription) -> None:
        """Lets go of all secrets; what is left is a row that has none."""
        if await self._record(subscription) is not None:
            await self._change(subscription, lambda _: ())

    async def _change(
        self,
        subscription: Subscription,
        change: Callable[[tuple[Secret, ...]], tuple[Secret, ...]],
    ) -> None:
        for _ in range(_ATTEMPTS_MAX):
            record = await self._record(subscription)
            kept = _of_generation(record, subscription)
            changed = change(kept)
            if record is not None and changed == kept:
                return
            following = DefinitionRecord(
                kind=_KIND,
                project=subscription.project,
                name=subscription.name,
                version=1 if record is None else record.version + 1,
                body=_encode(_Kept(subscription.generation, changed)),
                changed_ms=self._clock.now_ms(),
            )
            try:
                if record is None:
                    await self._catalogue.add_definition(following)
                else:
                    await self._catalogue.change_definition(following)
            except ConflictError:
                continue  # Another was quicker: what it did is the new beginning.
            return
        raise ConflictError(f"The secrets of {subscription.name} are changed by too many at once.")

    async def _record(self, subscription: Subscription) -> DefinitionRecord | None:
        return await self._catalogue.definition(_KIND, subscription.project, subscription.name)


def _of_generation(
    record: DefinitionRecord | None, subscription: Subscription
) -> tuple[Secret, ...]:
    if record is None:
        return ()
    kept = _decode(record.body)
    return kept.secrets if kept.generation == subscription.generation else ()
