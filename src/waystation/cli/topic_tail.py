"""`waystation topic tail`: prints messages of all partitions as they come, until Ctrl-C.

Messages of one partition, and so of one group, are printed in their order, over switches too: a
storage topic is read when those before it are sealed and read to their end. It outlives a station
that restarts, and prints nothing twice. A topic that was purged and made anew is printed from its
beginning; one that is not there any more ends it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import groupby
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from waystation.cli.options import JsonOption, KeyOption, TopicArgument, UrlOption
from waystation.cli.output import console, emit_json
from waystation.cli.patience import note, patiently
from waystation.cli.positions import parse_position
from waystation.cli.station import open_station
from waystation.cli.topic_messages import as_json as row_of
from waystation.cli.topic_messages import note_missing, payload_of, place_of, time_of
from waystation.errors import ExitCode, InvalidInputError, OffsetOutOfRangeError
from waystation.runtime.clock import Clock

if TYPE_CHECKING:
    from waystation.client import MessagePage, TopicMessage
    from waystation.client.sync_topics import Topics
    from waystation.types.topic import Partition

#: How often an idle tail asks whether there is anything new.
_POLL_SECONDS = 0.25
_PAGE_MAX = 500
_HELP = "beginning, end, a time (2026-11-15T12:00), or how long ago (10m)."


def tail(
    topic: TopicArgument,
    start: Annotated[
        str, typer.Option("--from", help=f"Where to begin: {_HELP}", metavar="POSITION")
    ] = "end",
    group: Annotated[str, typer.Option("--group", help="Only messages of this group.")] = "",
    count: Annotated[
        int, typer.Option("--count", help="End after so many messages; 0 = never.", min=0)
    ] = 0,
    url: UrlOption = "",
    key: KeyOption = "",
    as_json: JsonOption = False,
) -> None:
    """Print messages as they come, until Ctrl-C."""
    position = parse_position(start, clock=Clock())
    if "clock" in position:
        raise InvalidInputError(f"{start!r} is no position in a topic.", hint=f"Give {_HELP}")
    with open_station(url, key, scope="read") as station:
        left = count
        try:
            for message in Follower(station.topics, topic, position):
                if group and message.group != group:
                    continue
                _show(message, as_json=as_json)
                left -= 1
                if not left:
                    return
        except KeyboardInterrupt:
            raise typer.Exit(ExitCode.INTERRUPTED) from None


class _AnewError(Exception):
    """The topic is another one than what was read so far."""


class _Place:
    """How far one partition was read."""

    def __init__(self, next_offset: int | None, start: dict[str, Any]) -> None:
        #: None until the first page of a time tells.
        self.next_offset = next_offset
        #: What to ask for.
        self.start = start

    def behind(self, end: int) -> bool:
        """Whether there is more to read before an offset."""
        return self.next_offset is None or self.next_offset < end


class Follower:
    """Goes over the messages of a topic, and waits for more where there are none."""

    def __init__(self, topics: Topics, topic: str, position: dict[str, Any]) -> None:
        self._topics = topics
        self._topic = topic
        self._places: dict[tuple[int, int], _Place] = {}
        #: When the topic was made: another one of its name can follow.
        self._born_ms = topics.get(topic).created_ms
        # At the end of what is there now; a topic that is not there is told at once.
        for each in topics.state(topic).partitions:
            self._places[each.storage, each.partition] = _place(position, each)

    def __iter__(self) -> Iterator[TopicMessage]:
        while True:
            found = False
            try:
                for message in self._step():
                    found = True
                    yield message
            except _AnewError:
                note(f"{self._topic} was made anew; its messages follow from the first on")
                self._places.clear()
                continue
            if not found:
                time.sleep(_POLL_SECONDS)

    def _step(self) -> Iterator[TopicMessage]:
        """A page of each partition that has something new."""
        standing = patiently(lambda: self._topics.state(self._topic))
        # After its state: so what that tells is not of a later one.
        born_ms = patiently(lambda: self._topics.get(self._topic)).created_ms
        if born_ms != self._born_ms:
            self._born_ms = born_ms
            raise _AnewError
        for _, group in groupby(standing.partitions, key=lambda each: each.storage):
            partitions = list(group)
            page = [message for each in partitions for message in self._read(each)]
            # Those of one partition have times that never run backwards.
            yield from sorted(page, key=lambda each: (each.time_ms, each.partition, each.offset))
            places = [self._places[each.storage, each.partition] for each in partitions]
            behind = [p.behind(e.end) for p, e in zip(places, partitions, strict=True)]
            if any(behind) or not all(each.sealed for each in partitions):
                return

    def _read(self, partition: Partition) -> list[TopicMessage]:
        # Whatever comes into being while we look is read from its beginning.
        place = self._places.setdefault(
            (partition.storage, partition.partition), _Place(partition.first, {})
        )
        if place.next_offset is not None and place.next_offset > partition.end:
            raise _AnewError
        if not place.behind(partition.end):
            return []
        page = self._page(partition, place)
        place.start = {"cursor": page.cursor}
        note_missing(page)
        if page.messages:
            first, last = page.messages[0], page.messages[-1]
            missing = sum(
                each.to_offset - each.from_offset
                for each in page.damaged
                if each.to_offset <= first.offset
            )
            if place.next_offset is not None and first.offset > place.next_offset + missing:
                gone = first.offset - place.next_offset - missing
                note(f"{gone:,} messages were gone before they could be printed")
            place.next_offset = last.offset + 1
        if page.ended:
            place.next_offset = max(place.next_offset or 0, partition.end)
        return page.messages

    def _page(self, partition: Partition, place: _Place) -> MessagePage:
        def page() -> MessagePage:
            return self._topics.page(
                self._topic,
                storage=partition.storage,
                partition=partition.partition,
                limit=_PAGE_MAX,
                **place.start,
            )

        try:
            return patiently(page)
        except OffsetOutOfRangeError as error:
            if (place.next_offset or 0) > error.end:
                raise _AnewError from error
            # Let go since; what is kept follows.
            place.start = {}
            return patiently(page)
        except InvalidInputError as error:
            if "cursor" not in place.start:
                raise
            # A cursor knows its storage topic, whose number is never used again.
            raise _AnewError from error


def _place(position: dict[str, Any], partition: Partition) -> _Place:
    if "since" in position:
        return _Place(None, position)
    if position["to"] == "end":
        return _Place(partition.end, {"offset": partition.end})
    return _Place(partition.first, {})


def _show(message: TopicMessage, *, as_json: bool) -> None:
    if as_json:
        emit_json(row_of(message))
        return
    group = f" {message.group}" if message.group is not None else ""
    head = f"{time_of(message.time_ms)} {place_of(message)}"
    line = Text.assemble((head, "dim"), " ", (message.id, "cyan"), group, "  ", payload_of(message))
    console.print(line, soft_wrap=True)
