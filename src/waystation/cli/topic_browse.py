"""`waystation topic browse`: messages of a topic by place, time, group or id; else the newest."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

import typer

from waystation.cli.options import JsonOption, KeyOption, TopicArgument, UrlOption
from waystation.cli.output import emit_json, emit_table
from waystation.cli.positions import MOMENT, parse_moment
from waystation.cli.station import open_station
from waystation.cli.topic_messages import as_json as row_of
from waystation.cli.topic_messages import payload_of, place_of, read_messages, time_of
from waystation.errors import InvalidInputError, OffsetOutOfRangeError
from waystation.runtime.clock import Clock

if TYPE_CHECKING:
    from waystation.client import TopicMessage
    from waystation.client.sync_topics import Topics


def browse(
    topic: TopicArgument,
    partition: Annotated[int | None, typer.Option("--partition", help="Of this partition.")] = None,
    storage: Annotated[
        int | None, typer.Option("--storage", help="Of this storage topic; default: the first.")
    ] = None,
    offset: Annotated[
        int | None, typer.Option("--offset", help="From this offset of the partition on.")
    ] = None,
    since: Annotated[str, typer.Option("--since", help=f"From then on: {MOMENT}")] = "",
    group: Annotated[str | None, typer.Option("--group", help="Of this group, in order.")] = None,
    message_id: Annotated[str | None, typer.Option("--id", help="With this id.")] = None,
    limit: Annotated[int, typer.Option("--max", help="Most messages.", min=1)] = 20,
    url: UrlOption = "",
    key: KeyOption = "",
    as_json: JsonOption = False,
) -> None:
    """Look at messages: of a partition, of a group, with an id; else the newest ones."""
    wishes: dict[str, Any] = {
        "partition": partition,
        "storage": storage,
        "offset": offset,
        "group": group,
        "id": message_id,
    }
    chosen = {name: value for name, value in wishes.items() if value is not None}
    if chosen and not {"partition", "group", "id"} & set(chosen):
        raise InvalidInputError("--storage and --offset need --partition.")
    if since:
        if partition is None:
            raise InvalidInputError("--since needs --partition.")
        chosen["since"] = parse_moment(since, clock=Clock())
    with open_station(url, key, scope="read") as station:
        if chosen:
            found = list(islice(read_messages(station.topics, topic, **chosen), limit))
        else:
            found = _newest(station.topics, topic, limit)
    if as_json:
        emit_json({"messages": [row_of(message) for message in found]})
        return
    rows = [
        (
            time_of(each.time_ms),
            place_of(each),
            each.id,
            each.group if each.group is not None else "",
            payload_of(each),
        )
        for each in found
    ]
    emit_table(("time", "place", "id", "group", "payload"), rows, empty="No such messages.")


def _newest(topics: Topics, topic: str, limit: int) -> list[TopicMessage]:
    """The newest messages of all partitions, oldest first."""
    found: list[TopicMessage] = []
    partitions = topics.state(topic).partitions
    for storage in sorted({each.storage for each in partitions}, reverse=True):
        for each in partitions:
            if each.storage != storage or each.first == each.end:
                continue
            place: dict[str, Any] = {"storage": storage, "partition": each.partition}
            try:
                start = max(each.first, each.end - limit)
                newest = list(islice(read_messages(topics, topic, **place, offset=start), limit))
            except OffsetOutOfRangeError:
                # It was let go since; then what is kept is less than was asked for.
                newest = list(islice(read_messages(topics, topic, **place), limit))
            found += newest
        if len(found) >= limit:
            break
    found.sort(key=lambda each: (each.storage, each.time_ms, each.partition, each.offset))
    return found[-limit:]
