"""The verbs of subscriptions: create, change, pause, resume, reset, delete.

Each is a sequence of steps that can be repeated: catalogue, what it has in the store, working copy,
hint. Whoever finds one half-way finishes what another began (`lifecycle.py`): upkeep does, and so
does who repeats the verb.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

from waystation.catalogue import Catalogue
from waystation.db.definitions import require_version
from waystation.delivery.headers import check_headers
from waystation.delivery.signing import Secret
from waystation.errors import (
    ConflictError,
    EndpointInvalidError,
    ForbiddenAddressError,
    GroupMismatchError,
    InvalidInputError,
    ResetOutOfRangeError,
    TopicNotFoundError,
)
from waystation.logs.protocol import Retention
from waystation.logs.streams import StreamLogs
from waystation.runtime.clock import Clock
from waystation.runtime.ids import IdSource, require_name
from waystation.store.client import Store
from waystation.subscriptions.construction import Construction
from waystation.subscriptions.definition import (
    NewSubscription,
    StartAt,
    Subscription,
    SubscriptionOptions,
    check_endpoint,
    check_new,
    is_address,
)
from waystation.subscriptions.definitions import THERE, SubscriptionDefinitions
from waystation.subscriptions.lifecycle import Lifecycle
from waystation.subscriptions.shards import default_shards, growth_warning
from waystation.subscriptions.signing_secrets import SigningSecrets
from waystation.topics.model import StorageTopicDefinition, TopicDefinition
from waystation.topics.service import TopicService

#: Asks whether an endpoint of a project can be delivered to; raises InvalidInputError if not.
EndpointCheck = Callable[[str, str], Awaitable[None]]

#: How far clocks may be apart: a time that is further ahead is a mistake.
_AHEAD_MS_MAX = 60_000
_REASON_MAX = 500


class Subscriptions:
    """All subscriptions of all projects."""

    def __init__(
        self,
        catalogue: Catalogue,
        store: Store,
        logs: StreamLogs,
        topics: TopicService,
        *,
        clock: Clock,
        identity: IdSource,
        dataset: str,
        keeps: Retention,
        check: EndpointCheck,
    ) -> None:
        self._definitions = SubscriptionDefinitions(catalogue, store, clock=clock)
        self._secrets = SigningSecrets(catalogue, identity, clock=clock)
        construction = Construction(store, logs, topics, dataset=dataset, keeps=keeps)
        self.construction = construction
        self.lifecycle = Lifecycle(
            self._definitions, self._secrets, construction, store, clock=clock
        )
        self._topics = topics
        self._clock = clock
        self._check = check

    # -- Looking -----------------------------------------------------------------------------

    def known(self, project: str, name: str) -> Subscription | None:
        """The subscription, if it was read a moment ago, in whichever state; never waits."""
        return self._definitions.get_recent(project, name)

    async def get(self, project: str, name: str) -> Subscription:
        """The subscription as it is, also while it is being created or deleted."""
        require_name(name, field="subscription")
        subscription = await self._definitions.read_cached(project, name)
        if subscription is None:
            # A new store, or a creation that died half-way: the catalogue knows.
            row = await self._definitions.read_row(project, name)
            if row is None:
                raise self._definitions.not_found(name)
            await self.lifecycle.mend(row)
            subscription = await self._definitions.read_cached(project, name) or row
        if subscription.state not in THERE:
            raise self._definitions.not_found(name)
        return subscription

    async def list(self, project: str, *, after: str = "", limit: int) -> list[Subscription]:
        """Subscriptions of a project by name."""
        return await self._definitions.page(project, THERE, after=after, limit=limit)

    def everything(self) -> AsyncIterator[Sequence[Subscription]]:
        """All subscriptions of all projects as the catalogue has them, in every state, by pages."""
        return self._definitions.read_all()

    async def secrets(self, subscription: Subscription) -> tuple[Secret, ...]:
        """The secrets that sign its requests, the one in force first."""
        return await self._secrets.get(subscription)

    async def topic_of(self, subscription: Subscription) -> TopicDefinition | None:
        """Its topic, also a deleted one; None if it was purged."""
        try:
            return await self._topics.get_any(subscription.project, subscription.topic)
        except TopicNotFoundError:
            return None

    # -- Changing ----------------------------------------------------------------------------

    async def create(self, project: str, name: str, new: NewSubscription) -> Subscription:
        """Creates a subscription, which delivers from then on; ConflictError when there is one."""
        require_name(name, field="name")
        check_new(new)
        self._check_time(new.start, InvalidInputError, field="from")
        require_name(new.topic, field="topic")
        topic = await self._topics.get_newest(project, new.topic)
        _check_options(new.options, topic)
        await self._check_endpoint(project, new.endpoint)
        former, written = await self._former(project, name)
        shards = new.shards or _default_shards(topic, new.start)
        generation = former.generation + 1 if former else 0
        inner = (StorageTopicDefinition(number=generation, partitions=shards),)
        subscription = Subscription(
            project=project,
            name=name,
            version=former.version + 1 if former else 1,
            topic=new.topic,
            endpoint=new.endpoint,
            shards=shards,
            options=new.options,
            state="creating",
            generation=generation,
            # Receivers know repetitions by it, and what it delivers is no repetition of that.
            incarnation=former.incarnation + 1 if former else 1,
            retry=inner,
            dead=inner,
            start=new.start,
            first_storage=_first_storage(topic, new.start),
            created_ms=self._clock.now_ms(),
        )
        await self._definitions.create(subscription, over=written)
        await self._require_as_it_was(subscription, topic)
        return await self.lifecycle.finish_creation(subscription)

    async def _require_as_it_was(self, subscription: Subscription, topic: TopicDefinition) -> None:
        """Undo a creation whose topic grew meanwhile to where the subscription cannot follow.

        From the row on, `switch_produce` sees the subscription. What another node added and
        switched to before it could see the row is seen here: one of the two always sees the other.
        """
        warning = _growth_warning(subscription, topic)
        now = await self._topics.get_newest(subscription.project, subscription.topic)
        if _growth_warning(subscription, now) == warning:
            return
        await self.delete(subscription.project, subscription.name)
        raise ConflictError(
            f"Topic {topic.name} grew while subscription {subscription.name} was created, and its"
            f" {subscription.shards} shards cannot follow. Nothing was created.",
            hint="Create it again.",
        )

    async def growth_warning(self, subscription: Subscription) -> str | None:
        """Return why its number of shards cannot follow the growth of its topic; None if it can."""
        topic = await self.topic_of(subscription)
        return _growth_warning(subscription, topic) if topic else None

    async def _former(self, project: str, name: str) -> tuple[Subscription | None, int | None]:
        """What had the name before, and the version of its row; ConflictError if it still has."""
        found = await self._definitions.read_newest(project, name)
        if found is not None and found[0].state == "deleting":
            await self.lifecycle.mend(found[0])
            found = await self._definitions.read_newest(project, name)
        if found is None:
            # The store may know one that this catalogue never knew: its numbers stay its own.
            return await self._definitions.read_cached(project, name), None
        if found[0].state != "deleted":
            await self.lifecycle.mend(found[0])
            raise ConflictError(f"There is a subscription {name} already.")
        return found

    async def change(
        self,
        project: str,
        name: str,
        options: SubscriptionOptions,
        *,
        version: int,
        endpoint: str | None = None,
    ) -> Subscription:
        """Puts other options, or another endpoint, in place of those of a version.

        They hold from the next commit on; ConflictError if the version is not that.
        """
        present = await self.get(project, name)
        _check_options(options, await self.topic_of(present))
        if endpoint is not None and endpoint != present.endpoint:
            check_endpoint(endpoint)
            await self._check_endpoint(project, endpoint)
            if is_address(endpoint):
                await self._secrets.provide(present)

        def changed(subscription: Subscription) -> Subscription:
            require_version(subscription, version, kind="subscription")
            return subscription.changed(options=options, endpoint=endpoint or subscription.endpoint)

        return await self.lifecycle.change(project, name, changed)

    async def pause(
        self, project: str, name: str, *, until_ms: int = 0, reason: str = ""
    ) -> Subscription:
        """Stops delivering, until a time of the store's clock or until it is resumed."""
        if until_ms and until_ms <= self._clock.now_ms():
            raise InvalidInputError("The end of a pause lies in the future.", field="until")
        if len(reason) > _REASON_MAX:
            raise InvalidInputError(
                f"A reason has {_REASON_MAX} characters at most.", field="reason"
            )
        return await self.lifecycle.change(
            project,
            name,
            lambda now: now.changed(paused=True, paused_until_ms=until_ms, paused_reason=reason),
        )

    async def resume(self, project: str, name: str) -> Subscription:
        """Delivers again; one that is not paused stays as it is."""

        def resumed(now: Subscription) -> Subscription:
            off = {"paused": False, "paused_until_ms": 0, "paused_reason": ""}
            return now.changed(**off) if now.paused else now

        return await self.lifecycle.change(project, name, resumed)

    async def reset(
        self,
        project: str,
        name: str,
        to: StartAt,
        *,
        version: int | None = None,
        incarnation: int | None = None,
    ) -> Subscription:
        """Begins anew from somewhere else in the topic; retry and dead letters stay, as older ones.

        Who says which incarnation that makes can repeat it: what there is already stays.
        """
        present = await self.get(project, name)
        await self.check_reset(present, to)
        topic = await self.topic_of(present)

        def reset(now: Subscription) -> Subscription:
            require_version(now, version, kind="subscription")
            if incarnation is not None and now.incarnation >= incarnation:
                return now
            # Forward it stays: what is in retry belongs to the shards that it had there.
            first = min(now.first_storage, _first_storage(topic, to) if topic else 0)
            return now.changed(incarnation=now.incarnation + 1, start=to, first_storage=first)

        subscription = await self.lifecycle.change(project, name, reset, states=("active",))
        await self.lifecycle.mend(subscription)
        return subscription

    async def rotate_secret(self, project: str, name: str) -> str:
        """Puts a new signing secret in force, and tells it; the one before signs for a day more."""
        subscription = await self.get(project, name)
        if not is_address(subscription.endpoint):
            raise InvalidInputError(
                f"Subscription {name} sends no requests that would be signed.",
                field="subscription",
            )
        text = await self._secrets.rotate(subscription)
        # A new version, by which nodes see that they are to read the secrets again.
        await self.lifecycle.change(project, name, lambda now: now.changed())
        return text

    async def delete(self, project: str, name: str) -> None:
        """Deletes a subscription with its retries and dead letters; its record log is kept."""

        def deleting(now: Subscription) -> Subscription:
            return now if now.state == "deleting" else now.changed(state="deleting")

        gone = await self.lifecycle.change(project, name, deleting, states=THERE)
        await self.lifecycle.finish_deletion(gone)

    # -- What is refused ---------------------------------------------------------------------

    async def _check_endpoint(self, project: str, endpoint: str) -> None:
        try:
            await self._check(project, endpoint)
        except ForbiddenAddressError as error:
            raise ForbiddenAddressError(error.message, field="endpoint", hint=error.hint) from error
        except InvalidInputError as error:
            raise EndpointInvalidError(error.message, field="endpoint", hint=error.hint) from error

    async def check_reset(self, subscription: Subscription, to: StartAt) -> None:
        """Raise if a subscription cannot be reset there.

        There may be no messages, or its number of shards cannot follow the topic from there on.
        """
        self._check_time(to, ResetOutOfRangeError, field="to")
        topic = await self.topic_of(subscription)
        if topic is None or _first_storage(topic, to) >= subscription.first_storage:
            return
        earlier = subscription.changed(first_storage=_first_storage(topic, to))
        if (warning := _growth_warning(earlier, topic)) is not None:
            raise ResetOutOfRangeError(
                f"Subscription {subscription.name} cannot go back to before its topic grew."
                f" {warning}",
                field="to",
                hint="Create another subscription from there; it gets a number of shards that"
                " can follow.",
            )

    def _check_time(self, at: StartAt, kind: type[InvalidInputError], *, field: str) -> None:
        if isinstance(at, int) and at > self._clock.now_ms() + _AHEAD_MS_MAX:
            raise kind("There are no messages of the future.", field=field)


def _check_options(options: SubscriptionOptions, topic: TopicDefinition | None) -> None:
    check_headers(options.headers)
    if options.grouped and topic is not None and not topic.options.grouped:
        raise GroupMismatchError(
            f"Topic {topic.name} is not grouped, so there is no order to keep.",
            field="grouped",
        )


def _growth_warning(subscription: Subscription, topic: TopicDefinition) -> str | None:
    read = [each.router for each in topic.storage if each.number >= subscription.first_storage]
    return growth_warning(read, subscription.shards) if read else None


def _default_shards(topic: TopicDefinition, start: StartAt) -> int:
    """As many as keep a group in its shard over all storage topics that will be read."""
    first = _first_storage(topic, start)
    bases = {each.router.base for each in topic.storage if each.number >= first}
    return default_shards(bases.pop()) if len(bases) == 1 else 1


def _first_storage(topic: TopicDefinition, start: StartAt) -> int:
    """The number of the storage topic that is read first."""
    return (topic.target if start == "end" else topic.storage[0]).number
