"""The book of topics: what each is now, in the catalogue, in the store, in this process.

The catalogue has the truth. The store has a working copy, which only goes forward; processes read
that, and believe what they read for two seconds. A change is written to the catalogue first,
against the version that it was made from, then to the working copy. Versions under one name never
run backwards, not even over a purge or with a new catalogue: a creation goes on from there. A
catalogue that came from a backup lacks changes that were confirmed: what is done next goes on from
the working copy, which has them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence

import msgspec

from waystation.catalogue import Catalogue, DefinitionRecord
from waystation.clock import Clock
from waystation.errors import ConflictError, TopicNotFoundError, WaystationError
from waystation.ids import require_name
from waystation.store import Store, script
from waystation.telemetry.logging import logger
from waystation.topics.topic import Topic, TopicState, decode_topic, encode_topic

_log = logger("topics")

_PUT = script(__package__, "put")
_KIND = "topic"
#: A topic that was read longer ago is read again before it is used.
_FRESH_SECONDS = 2.0
_KNOWN_MAX = 10_000
#: How often a change is made anew because others changed the topic meanwhile.
_ATTEMPTS_MAX = 20
_PAGE = 200

#: States of a topic that can be used.
ALIVE: tuple[TopicState, ...] = ("active", "blocked")
EVERY: tuple[TopicState, ...] = (*ALIVE, "deleted", "purged")


class TopicBook:
    """Reads and changes topics; what a change means is its callers' business."""

    def __init__(self, catalogue: Catalogue, store: Store, *, clock: Clock) -> None:
        self._catalogue = catalogue
        self._store = store
        self._clock = clock
        self._known: dict[tuple[str, str], tuple[Topic, float]] = {}

    # -- Looking -----------------------------------------------------------------------------

    def known(self, project: str, name: str) -> Topic | None:
        """The topic, if it was read a moment ago; never waits."""
        found = self._known.get((project, name))
        if found is None or self._clock.real_seconds() - found[1] > _FRESH_SECONDS:
            return None
        return found[0]

    async def copy(self, project: str, name: str) -> Topic | None:
        """The working copy; None where the store has none."""
        read_at = self._clock.real_seconds()
        body = await self._store.call("HGET", _working_copy(project, name), "body", repeatable=True)
        return None if body is None else self.remember(decode_topic(body), read_at)

    async def truth(self, project: str, name: str) -> Topic | None:
        """What the catalogue has; a purged topic too."""
        record = await self._catalogue.definition(_KIND, project, name)
        return None if record is None else decode_topic(record.body)

    async def copied_version(self, topic: Topic) -> int:
        """The version of a topic's working copy; 0 where the store has none."""
        key = _working_copy(topic.project, topic.name)
        return int(await self._store.call("HGET", key, "version", repeatable=True) or 0)

    async def newest(self, project: str, name: str) -> tuple[Topic, int] | None:
        """What was written last of a topic that the catalogue has, and the version of its row.

        A working copy never has what no row had before, so the one that is read first can be newer
        only if the catalogue went back.
        """
        copy = await self.copy(project, name)
        row = await self.truth(project, name)
        if row is None:
            return None
        went_back = copy is not None and copy.version > row.version
        return (copy if copy is not None and went_back else row), row.version

    async def page(
        self, project: str, states: tuple[TopicState, ...], *, after: str, limit: int
    ) -> list[Topic]:
        """Topics of a project in these states, by name; fewer than `limit` only at the end."""
        found: list[Topic] = []
        while records := await self._catalogue.definitions(
            _KIND, project, after=after, limit=_PAGE
        ):
            topics = (decode_topic(record.body) for record in records)
            found += [topic for topic in topics if topic.state in states]
            if len(found) >= limit or len(records) < _PAGE:
                break
            after = records[-1].name
        return found[:limit]

    async def everything(self) -> AsyncIterator[Sequence[Topic]]:
        """All topics of all projects as the catalogue has them, in every state, page by page.

        A row that nobody can read is told and passed over: it is no reason to forget the others.
        """
        for project in await self._catalogue.projects():
            after = ""
            while records := await self._catalogue.definitions(
                _KIND, project.name, after=after, limit=_PAGE
            ):
                yield [topic for record in records if (topic := _readable(record)) is not None]
                after = records[-1].name

    # -- Changing ----------------------------------------------------------------------------

    async def enter(self, topic: Topic, *, over: int | None) -> None:
        """Writes a new topic to the catalogue, over a version of a purged one if there is one."""
        if over is None:
            await self._catalogue.add_definition(self._record(topic))
        else:
            await self._catalogue.change_definition(self._record(topic), over=over)

    async def change(
        self,
        project: str,
        name: str,
        change: Callable[[Topic], Topic],
        *,
        among: tuple[TopicState, ...] = ALIVE,
    ) -> Topic:
        """Changes a topic that is in one of these states, to others it is as good as absent."""
        require_name(name, field="topic")
        for _ in range(_ATTEMPTS_MAX):
            found = await self.newest(project, name)
            if found is None:
                raise not_found(name)
            topic, written = found
            try:
                if topic.state not in among:
                    raise not_found(name)
                changed = change(topic)
            except WaystationError:
                # The caller knows the topic by its working copy, and whoever changed it last may
                # have died before that was brought up to date.
                await self.put(topic)
                raise
            if changed.version != written:
                try:
                    await self._catalogue.change_definition(self._record(changed), over=written)
                except ConflictError:
                    continue  # Another was quicker: what it did is the new beginning.
            await self.put(changed)
            return self.remember(changed, self._clock.real_seconds())
        raise ConflictError(f"Topic {name} is changed by too many at once.")

    async def put(self, topic: Topic) -> None:
        """Brings the working copy up to this version; a newer one stays."""
        await self._store.run(
            _PUT, [_working_copy(topic.project, topic.name)], [topic.version, encode_topic(topic)]
        )

    def remember(self, topic: Topic, read_at: float) -> Topic:
        """Keeps the newest that was seen, and returns it: the same object while it is the same."""
        key = (topic.project, topic.name)
        known = self._known.get(key)
        if known is not None and known[0].version >= topic.version:
            topic = known[0]
        elif len(self._known) >= _KNOWN_MAX:
            self._known.clear()
        self._known[key] = (topic, read_at)
        return topic

    def _record(self, topic: Topic) -> DefinitionRecord:
        return DefinitionRecord(
            kind=_KIND,
            project=topic.project,
            name=topic.name,
            version=topic.version,
            body=encode_topic(topic),
            changed_ms=self._clock.now_ms(),
        )


def _readable(record: DefinitionRecord) -> Topic | None:
    try:
        return decode_topic(record.body)
    except msgspec.DecodeError as error:
        _log.error(
            "a topic of the catalogue cannot be read",
            project=record.project,
            topic=record.name,
            problem=str(error),
        )
        return None


def not_found(name: str) -> TopicNotFoundError:
    """What is said of a topic that is absent, deleted or another project's."""
    return TopicNotFoundError(f"There is no topic {name}.")


def _working_copy(project: str, name: str) -> str:
    return f"{{t.{project}.{name}}}:topic"
