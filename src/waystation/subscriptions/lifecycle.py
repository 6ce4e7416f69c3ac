"""The life of a subscription: creating, active, deleting, deleted; and who finishes a step of it.

A verb writes to the catalogue what is to be, then does it. Where it died in between, the row tells
what is left to do, and all of that can be done again by anyone, also by two at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from waystation.errors import ShardFrozenError
from waystation.runtime.clock import Clock
from waystation.store.client import Store
from waystation.subscriptions.construction import Construction
from waystation.subscriptions.definition import Subscription, is_address
from waystation.subscriptions.definitions import EVERY, SubscriptionDefinitions
from waystation.subscriptions.names import DELIVERY
from waystation.subscriptions.signing_secrets import SigningSecrets


class Lifecycle:
    """Changes rows, and brings everything else to where they are."""

    def __init__(
        self,
        definitions: SubscriptionDefinitions,
        secrets: SigningSecrets,
        construction: Construction,
        store: Store,
        *,
        clock: Clock,
    ) -> None:
        self._definitions = definitions
        self._secrets = secrets
        self._construction = construction
        self._store = store
        self._clock = clock

    async def change(
        self,
        project: str,
        name: str,
        change: Callable[[Subscription], Subscription],
        *,
        states: Sequence[str] = (),
    ) -> Subscription:
        """Changes one in the catalogue and its working copy, and tells the nodes."""
        subscription = await self._definitions.change(project, name, change, states=states)
        await self._tell(subscription)
        return subscription

    async def mend(self, subscription: Subscription) -> None:
        """Brings one to where its row says it is."""
        match subscription.state:
            case "creating":
                await self.finish_creation(subscription)
            case "active":
                await self._finish_reset(subscription)
                await self._bring_up(subscription)
            case "deleting":
                await self.finish_deletion(subscription)
            case "deleted":
                await self._bring_up(subscription)

    async def finish_creation(self, subscription: Subscription) -> Subscription:
        """Builds what it has in the store; then it is active."""
        if is_address(subscription.endpoint):
            await self._secrets.provide(subscription)
        try:
            await self._construction.build(subscription, subscription.start)
        except ShardFrozenError:
            # Another has deleted it meanwhile, perhaps before our last holds.
            await self._construction.let_go(subscription)
            raise self._definitions.not_found(subscription.name) from None

        def active(now: Subscription) -> Subscription:
            same = now.generation == subscription.generation and now.state == "creating"
            return now.changed(state="active") if same else now

        return await self.change(subscription.project, subscription.name, active)

    async def finish_deletion(self, subscription: Subscription) -> None:
        """Removes what it has in the store; then it is deleted."""
        await self._construction.remove(subscription)
        await self._secrets.forget(subscription)

        def deleted(now: Subscription) -> Subscription:
            same = now.generation == subscription.generation and now.state == "deleting"
            return now.changed(state="deleted", deleted_ms=self._clock.now_ms()) if same else now

        await self.change(subscription.project, subscription.name, deleted, states=EVERY)

    async def let_go(self, subscription: Subscription) -> None:
        """Releases what may have come after a deletion, from one that was late."""
        await self._construction.let_go(subscription)

    async def _finish_reset(self, subscription: Subscription) -> None:
        there = await self._construction.incarnations(subscription)
        if not all(there):
            # They were lost with their store: whatever the topic has by now is undelivered.
            await self._construction.build(subscription, "beginning")
        if min(there) < subscription.incarnation:
            await self._construction.move(subscription)

    async def _bring_up(self, subscription: Subscription) -> None:
        """Brings catalogue and working copy together; a change may have died between the two."""
        copied = await self._definitions.cached_version(subscription)
        if copied < subscription.version:
            await self._definitions.publish(subscription)
            await self._tell(subscription)
        elif copied > subscription.version:
            # It was changed a moment ago; or the catalogue came from a backup, and is brought up.
            await self.change(
                subscription.project, subscription.name, lambda now: now, states=EVERY
            )

    async def _tell(self, subscription: Subscription) -> None:
        told = f"{subscription.project}.{subscription.name}"
        await self._store.call("PUBLISH", DELIVERY, told, repeatable=True)
