"""A node: all parts of one process, opened in order and closed in reverse by one exit stack."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial

import msgspec

from waystation.access import Gate
from waystation.archive import Archive
from waystation.catalogue import Catalogue, catalogue_at
from waystation.channels.service import ChannelService
from waystation.config import Config
from waystation.delivery.addresses import AddressGuard
from waystation.errors import InvalidInputError, SettingsError, StoreDataLostError
from waystation.history.role import HistoryRole
from waystation.logs.records import RecordLogs, history_reader_name
from waystation.logs.streams import StreamLogs
from waystation.logs.trimmer import MemoryRelief
from waystation.node_delivery import Delivery, open_channels, open_delivery, open_guard
from waystation.pools.opening import PoolDesk, open_pools
from waystation.reach import Reach
from waystation.runtime.clock import Clock
from waystation.runtime.ids import IdSource, RandomIds
from waystation.runtime.logging import logger
from waystation.store import keys
from waystation.store.dataset import REPLACED_MAX, stamp_archive
from waystation.store.leader import Leader, MaintenanceFunctions, MaintenanceStep
from waystation.store.leases import Leases
from waystation.store.membership import Membership
from waystation.store.opening import OpenStore, accept_store_loss, open_store
from waystation.subscriptions.definitions import SubscriptionDefinitions
from waystation.subscriptions.dispatch import Dispatch, open_dispatch
from waystation.subscriptions.endpoints.means import Means
from waystation.subscriptions.topic_readers import SubscriptionReaders
from waystation.topics.dedup import Deduplicator
from waystation.topics.maintenance import TopicMaintenance
from waystation.topics.producer import CheckedProducer, Producer
from waystation.topics.queries import TopicQueries
from waystation.topics.rate_limits import RateLimiter
from waystation.topics.schemas import SchemaValidator
from waystation.topics.service import TopicService
from waystation.transactions.app import App
from waystation.transactions.archive_opening import open_archive
from waystation.transactions.callbacks import CallbackUrls, open_secret
from waystation.transactions.cells import open_cells
from waystation.transactions.engine import Engine, open_engine
from waystation.transactions.replies import Replies, open_replies
from waystation.transactions.watch import Watch

_log = logger("node")

#: Seconds between two maintenance passes.
MAINTENANCE_S = 10.0


@dataclass(kw_only=True)
class Node:
    """The parts of a running process."""

    settings: Config
    clock: Clock
    identity: IdSource
    catalogue: Catalogue
    gate: Gate
    opened: OpenStore
    channels: ChannelService
    delivery: Delivery
    logs: StreamLogs
    topics: TopicService
    producer: Producer
    topic_queries: TopicQueries
    limits: RateLimiter
    schemas: SchemaValidator
    engine: Engine
    replies: Replies
    subscriptions: Dispatch
    pools: PoolDesk
    archive: Archive
    watch: Watch
    leader: Leader
    #: Functions that return warnings for the operator; `/readyz` shows them.
    note_sources: list[Callable[[], list[str]]]
    membership: Membership
    #: Data pipeline; None if `history.run` is off.
    history: HistoryRole | None
    #: Closes the parts above.
    parts: AsyncExitStack

    @property
    def notes(self) -> list[str]:
        """Warnings of all parts for the operator, as sentences."""
        return [note for source in self.note_sources for note in source()]

    async def close(self) -> None:
        """Close all parts in reverse order of opening, also when one of them fails.

        Raise the error of the part that failed last, after all others are closed.
        """
        await self.parts.aclose()


async def open_callback_urls(
    settings: Config, opened: OpenStore, *, identity: IdSource
) -> CallbackUrls:
    """How steps are called back."""
    public_url = settings.http.public_url
    if public_url:
        try:
            AddressGuard(("0.0.0.0/0", "::/0")).check_url(public_url)
        except InvalidInputError as error:
            raise SettingsError(f"http.public_url: {error.message}") from error
    return CallbackUrls(await open_secret(opened.store, identity), public_url)


@dataclass(frozen=True)
class _Ground:
    """What the larger parts stand on."""

    settings: Config
    catalogue: Catalogue
    opened: OpenStore
    logs: StreamLogs
    clock: Clock
    identity: IdSource


async def open_transactions(
    ground: _Ground, reach: Reach, undo: AsyncExitStack, *, app: App | None
) -> tuple[Archive, Engine, Replies, Watch]:
    """The archive, the engine, who sends its replies, and who sees that both are served."""
    settings, opened, clock = ground.settings, ground.opened, ground.clock
    where = settings.archive.url, settings.data_dir
    admit = partial(stamp_archive, opened.store)
    archive = await open_archive(*where, admit=admit, clock=clock)
    undo.push_async_callback(archive.close)
    services = reach.services()
    engine = await open_engine(
        settings.transactions,
        opened,
        ground.catalogue,
        ground.logs,
        clock=clock,
        identity=ground.identity,
        app=app,
        services=services,
        urls=reach.urls,
        archive=archive,
        retention_days=settings.archive.retention_days,
        recorded=settings.history.record == "full",
    )
    undo.push_async_callback(engine.close)
    assert engine.archivist is not None, "it has an archive"
    following = engine.archivist.following
    replies = await open_replies(
        settings,
        opened,
        engine.signals,
        reach.sender,
        services,
        engine.nodes,
        following,
        clock=clock,
        attempts=reach.attempts,
    )
    undo.push_async_callback(replies.close)
    watch = Watch(
        opened.store,
        engine.signals,
        engine.nodes,
        reach.sender,
        cells=settings.transactions.cells,
        clock=clock,
        notice_url=settings.delivery.notice_url,
        archive_error=engine.archive_error,
    )
    await watch.start()
    undo.push_async_callback(watch.stop)
    return archive, engine, replies, watch


async def open_subscriptions(
    ground: _Ground, topics: TopicService, reach: Reach, engine: Engine
) -> Dispatch:
    """Subscriptions, and who delivers them."""
    settings = ground.settings
    means = Means(
        sender=reach.sender,
        guard=reach.guard,
        start_many=engine.starter.start_many,
        publish_many=reach.channels.publish_many,
        enqueue_many=reach.pools.enqueue,
        clock=ground.clock,
    )
    return await open_dispatch(
        settings.subscriptions,
        ground.opened,
        ground.catalogue,
        ground.logs,
        topics,
        means,
        check=reach.check_endpoint,
        clock=ground.clock,
        identity=ground.identity,
        notice_url=settings.delivery.notice_url,
        recorded=settings.history.record == "full",
        records_full=settings.history.full,
    )


def open_topics(
    settings: Config, opened: OpenStore, catalogue: Catalogue, logs: StreamLogs, *, clock: Clock
) -> tuple[TopicService, Producer]:
    """Topics, and who produces to them."""
    strict = settings.topics.strict_partitions
    definitions = SubscriptionDefinitions(catalogue, opened.store, clock=clock)
    readers = SubscriptionReaders(definitions, logs)
    topics = TopicService(catalogue, opened.store, logs, readers, clock=clock, strict=strict)
    dedup = Deduplicator(opened.store, clock=clock, durability=opened.durability)
    return topics, Producer(topics, logs, dedup, durability=opened.durability)


def open_records(
    settings: Config, opened: OpenStore, logs: StreamLogs, *, clock: Clock
) -> RecordLogs:
    """Return the record logs of channels and pools."""
    history = settings.history
    return RecordLogs(
        opened.store,
        logs,
        clock=clock,
        recorded=history.record == "full",
        register_as=history_reader_name(history.full) if history.run else "",
    )


def open_catalogue(settings: Config) -> Catalogue:
    """The catalogue that the settings name."""
    return catalogue_at(settings.catalogue, folder=settings.data_dir)


async def open_gate(settings: Config, catalogue: Catalogue, *, clock: Clock) -> Gate:
    """The gate, which must have somebody to let in."""
    gate = Gate(catalogue, clock=clock, insecure=settings.auth.insecure)
    try:
        await gate.start()
        if not gate.insecure and not gate.has_keys:
            raise SettingsError(
                "There is no API key yet, so nobody could come in.",
                hint="Create one with `waystation keys create`, or serve everyone with --insecure.",
            )
    except BaseException:
        await gate.stop()
        raise
    return gate


async def settle_cells(settings: Config, opened: OpenStore, logs: StreamLogs) -> Config:
    """Open the cells of transactions; return settings that name their actual number."""
    transactions = settings.transactions
    cells = await open_cells(opened.store, logs, transactions.cells, full=settings.history.full)
    transactions = msgspec.structs.replace(transactions, cells=cells)
    return msgspec.structs.replace(settings, transactions=transactions)


async def accept_loss(settings: Config, *, lost: str = "") -> tuple[str, str, bool]:
    """Accept that the store lost its data set, or the one named `lost`.

    Returns the id that is lost, the id that the store has now, and whether anything was lost. The
    store is changed before the catalogue; a crash between the two is repaired by a repetition, or
    by the next node that opens.
    """
    catalogue = open_catalogue(settings)
    await catalogue.open()
    try:
        known = await catalogue.data_sets()
        if lost and lost not in known:
            known = (lost, *known)
        dataset, changed = await accept_store_loss(settings, known)
        if changed:
            await _remember_data_set(catalogue, dataset)
        return known[0], dataset, changed
    finally:
        await catalogue.close()


async def _open_known_store(
    settings: Config, catalogue: Catalogue, *, clock: Clock, identity: IdSource
) -> OpenStore:
    """Open the store, which must have the data set that the catalogue knows."""
    known = await catalogue.data_sets()
    opened = await open_store(settings, clock=clock, identity=identity, known=known)
    try:
        await _remember_data_set(catalogue, opened.dataset)
    except BaseException:
        await opened.close()
        raise
    return opened


async def _remember_data_set(catalogue: Catalogue, dataset: str) -> None:
    """Make a data set the newest of the catalogue."""
    known = await catalogue.data_sets()
    if known[:1] == (dataset,):
        return
    after = (dataset, *(each for each in known if each != dataset))[: REPLACED_MAX + 1]
    if await catalogue.change_data_sets(known, after):
        return
    if (await catalogue.data_sets())[:1] != (dataset,):
        raise StoreDataLostError(
            f"The catalogue was given another data set than {dataset} at the same time.",
            hint="All processes that share a catalogue must name the same store.",
        )


def maintenance_steps(
    engine: Engine, watch: Watch, pools: PoolDesk, subscriptions: Dispatch
) -> Sequence[MaintenanceStep]:
    """Return the maintenance steps of transactions, pools and subscriptions."""
    return [
        MaintenanceFunctions(engine.mend),
        MaintenanceFunctions(engine.count, engine.stop_counting),
        MaintenanceFunctions(watch.count, watch.stop_counting),
        MaintenanceFunctions(engine.forget),
        MaintenanceFunctions(pools.upkeep.mend, pools.upkeep.rest),
        MaintenanceFunctions(subscriptions.upkeep.mend),
    ]


async def open_node(
    settings: Config,
    *,
    clock: Clock | None = None,
    identity: IdSource | None = None,
    app: App | None = None,
) -> Node:
    """Opens a node; raises an error that says why not. An app comes before that of the settings."""
    clock, identity = clock or Clock(), identity or RandomIds()
    async with AsyncExitStack() as undo:
        catalogue = open_catalogue(settings)
        await catalogue.open()
        undo.push_async_callback(catalogue.close)
        gate = await open_gate(settings, catalogue, clock=clock)
        undo.push_async_callback(gate.stop)
        opened = await _open_known_store(settings, catalogue, clock=clock, identity=identity)
        undo.push_async_callback(opened.close)
        for note in opened.notes:
            _log.warning("store", note=note)
        logs = StreamLogs(opened.store)
        settings = await settle_cells(settings, opened, logs)
        guard = open_guard(settings.delivery)
        records = open_records(settings, opened, logs, clock=clock)
        await undo.enter_async_context(records)
        channels = open_channels(settings, opened, guard, clock=clock, records=records)
        delivery = await open_delivery(settings, opened, logs, guard, clock=clock)
        undo.push_async_callback(delivery.close)
        topics, producer = open_topics(settings, opened, catalogue, logs, clock=clock)
        limits, schemas = RateLimiter(clock=clock), SchemaValidator()
        pools = await open_pools(settings.pools, opened, catalogue, clock=clock, records=records)
        undo.push_async_callback(pools.close)
        urls = await open_callback_urls(settings, opened, identity=identity)
        within = CheckedProducer(
            topics, producer, schemas, limits, settings.topics.message_bytes_max
        )
        reach = Reach(
            guard, delivery.sender, channels, within, urls, pools.pools, delivery.attempts
        )
        ground = _Ground(settings, catalogue, opened, logs, clock, identity)
        archive, engine, replies, watch = await open_transactions(ground, reach, undo, app=app)
        subscriptions = await open_subscriptions(ground, topics, reach, engine)
        undo.push_async_callback(subscriptions.close)
        leases = Leases(opened.store, opened.renewer, owner=identity.token(16))
        topic_maintenance = TopicMaintenance(topics, logs)
        steps: list[MaintenanceStep] = [
            topic_maintenance,
            MemoryRelief(logs, opened.memory),
            *maintenance_steps(engine, watch, pools, subscriptions),
        ]
        leader = Leader(leases, keys.MAINTENANCE_LEASE, steps, every_s=MAINTENANCE_S, clock=clock)
        await undo.enter_async_context(leader)
        membership = Membership(
            opened.store,
            keys.PROCESSES,
            identity.token(16),
            on_change=limits.share_among,
            clock=clock,
        )
        await undo.enter_async_context(membership)
        notes = [lambda: topic_maintenance.notes, lambda: watch.notes, subscriptions.notes]
        history = None
        if settings.history.run:
            history = HistoryRole(settings, opened, logs, clock=clock, identity=identity)
            await undo.enter_async_context(history)
            notes.append(lambda: history.notes)
        # Closed first, because long polls would otherwise wait while the other parts close.
        undo.callback(channels.close)
        parts = undo.pop_all()
    return Node(
        settings=settings,
        clock=clock,
        identity=identity,
        catalogue=catalogue,
        gate=gate,
        opened=opened,
        channels=channels,
        delivery=delivery,
        logs=logs,
        topics=topics,
        producer=producer,
        topic_queries=TopicQueries(topics, logs),
        limits=limits,
        schemas=schemas,
        engine=engine,
        replies=replies,
        subscriptions=subscriptions,
        pools=pools,
        archive=archive,
        watch=watch,
        leader=leader,
        note_sources=notes,
        history=history,
        membership=membership,
        parts=parts,
    )
