"""`waystation topic`: make topics, let them grow, produce to them and look into them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer
from rich.text import Text

from waystation.cli.option_words import read_options
from waystation.cli.options import JsonOption, KeyOption, TopicArgument, UrlOption
from waystation.cli.output import console, emit_json, emit_table
from waystation.cli.patience import note
from waystation.cli.station import open_station
from waystation.cli.topic_browse import browse
from waystation.cli.topic_messages import time_of
from waystation.cli.topic_produce import produce
from waystation.cli.topic_tail import tail
from waystation.errors import ConflictError, InvalidInputError
from waystation.types.topic import TopicOptions

if TYPE_CHECKING:
    from waystation.client.sync_topics import Topics
    from waystation.types.topic import Topic, TopicPartitions

app = typer.Typer(no_args_is_help=True, help="Topics: ordered logs that grow.")
app.command()(produce)
app.command()(browse)
app.command()(tail)

_OPTIONS = "An option as name=value, such as grouped=true or dedup_seconds=3600; may be repeated."
OptionOption = Annotated[list[str] | None, typer.Option("--option", "-o", help=_OPTIONS)]
_FORCE = "Also if subscriptions stop there, because their shard count cannot follow."
ForceOption = Annotated[bool, typer.Option("--force", help=_FORCE)]


@app.command()
def create(
    topic: TopicArgument,
    partitions: Annotated[
        int | None, typer.Option("--partitions", help="How many; default 4.", min=1)
    ] = None,
    options: OptionOption = None,
    url: UrlOption = "",
    key: KeyOption = "",
    as_json: JsonOption = False,
) -> None:
    """Create a topic. By default each partition keeps 256 MiB and messages for seven days."""
    chosen: Any = _options(options)
    with open_station(url, key, scope="admin") as station:
        try:
            made = station.topics.create(topic, partitions=partitions, **chosen)
        except ConflictError as error:
            error.hint = (
                "See it with `waystation topic show`; a deleted one comes back with `restore`."
            )
            raise
    told = f"{topic} has {_partitions(made.storage[0].partitions)}; {_kept(made.options)}"
    _tell(made, told, as_json=as_json)


@app.command()
def change(
    topic: TopicArgument,
    options: OptionOption = None,
    url: UrlOption = "",
    key: KeyOption = "",
    as_json: JsonOption = False,
) -> None:
    """Change options of a topic; those that are not named stay."""
    chosen: Any = _options(options)
    if not chosen:
        raise InvalidInputError("Nothing to change.", hint="Give options as -o name=value.")
    with open_station(url, key, scope="admin") as station:
        changed = station.topics.change(topic, **chosen)
    _tell(changed, f"{topic} is changed, version {changed.version}", as_json=as_json)


@app.command("list")
def list_(
    deleted: Annotated[bool, typer.Option("--deleted", help="Deleted ones too.")] = False,
    url: UrlOption = "",
    key: KeyOption = "",
    as_json: JsonOption = False,
) -> None:
    """List topics."""
    with open_station(url, key, scope="read") as station:
        found = list(station.topics.list(deleted=deleted))
    if as_json:
        emit_json({"topics": found})
        return
    emit_table(
        ("topic", "state", "partitions", "grouped", "created"),
        [
            (
                each.name,
                each.state,
                _chain(each),
                "yes" if each.options.grouped else "",
                time_of(each.created_ms),
            )
            for each in found
        ],
        empty="No topics. Make one with `waystation topic create NAME`.",
    )


@app.command()
def show(
    topic: TopicArgument, url: UrlOption = "", key: KeyOption = "", as_json: JsonOption = False
) -> None:
    """Show a topic: its options, its storage topics, what each partition holds."""
    with open_station(url, key, scope="read") as station:
        found = station.topics.get(topic)
        standing = station.topics.state(topic)
    if as_json:
        emit_json({"topic": found, "standing": standing})
        return
    head = f"{topic} is {found.state}, version {found.version}; {standing.messages:,} messages"
    console.print(Text(f"{head}, {standing.bytes:,} bytes"))
    for name, value in msgspec.structs.asdict(found.options).items():
        console.print(Text(f"  {name} = {msgspec.json.encode(value).decode()}", style="dim"))
    _show_partitions(found, standing)
    for warning in standing.warnings:
        note(warning)


def _show_partitions(topic: Topic, standing: TopicPartitions) -> None:
    numbers = ("K", "partition", "first", "end", "bytes", "dropped")
    rows = [
        (
            each.storage,
            topic.storage[each.storage].factor if each.storage < len(topic.storage) else "",
            each.partition,
            "sealed" if each.sealed else "next" if each.storage > topic.produce_pointer else "open",
            *(f"{value:,}" for value in (each.first, each.end, each.bytes, each.dropped)),
        )
        for each in standing.partitions
    ]
    columns = ("storage topic", "K", "partition", "state", "first", "end", "bytes", "dropped")
    emit_table(columns, rows, empty="No partitions yet.", numbers=numbers)


@app.command("add-storage")
def add_storage(
    topic: TopicArgument,
    partitions: Annotated[int, typer.Argument(help="Its number of partitions.", min=1)],
    force: ForceOption = False,
    url: UrlOption = "",
    key: KeyOption = "",
    as_json: JsonOption = False,
) -> None:
    """Add a storage topic; messages go there after a switch."""
    with open_station(url, key, scope="admin") as station:
        changed = station.topics.add_storage_topic(topic, partitions, force=force)
    last = changed.storage[-1]
    chain = f"K {last.factor}" if last.factor > 1 else "K 1, a new chain"
    told = f"{topic} has storage topic {len(changed.storage) - 1} with {_partitions(partitions)}"
    told += f" ({chain}); use it with `waystation topic switch {topic}`"
    _tell(changed, told, as_json=as_json)


@app.command()
def switch(
    topic: TopicArgument,
    version: Annotated[
        int | None,
        typer.Option("--version", help="Only if this is the topic's version.", min=1),
    ] = None,
    force: ForceOption = False,
    url: UrlOption = "",
    key: KeyOption = "",
    as_json: JsonOption = False,
) -> None:
    """Produce to the next storage topic from now on; at the last one nothing changes."""
    with open_station(url, key, scope="admin") as station:
        changed = station.topics.switch_produce(topic, version=version, force=force)
    pointer = changed.produce_pointer
    told = f"{topic} is produced to storage topic {pointer}, the "
    told += "last one" if pointer + 1 == len(changed.storage) else "next one can follow"
    _tell(changed, told, as_json=as_json)


@app.command()
def where(
    topic: TopicArgument,
    group: Annotated[str, typer.Argument(help="The group to look for.")],
    shards: Annotated[
        int | None, typer.Option("--shards", help="Tell its shard among so many.", min=1)
    ] = None,
    url: UrlOption = "",
    key: KeyOption = "",
    as_json: JsonOption = False,
) -> None:
    """Tell the partition of a group in every storage topic, and its shard."""
    with open_station(url, key, scope="read") as station:
        found = station.topics.where(topic, group, shards=shards)
    if as_json:
        emit_json(found)
        return
    columns = ("storage topic", "partition", *(("shard",) if shards else ()), "")
    rows = [
        (
            each.storage,
            each.partition,
            *((each.shard,) if shards else ()),
            "produced to" if each.current else "",
        )
        for each in found.positions
    ]
    emit_table(columns, rows, empty="Nowhere.", numbers=columns[:-1])
    console.print(Text(f"hash {found.hash}", style="dim"))
    if found.consistent is False:
        note(f"{shards} shards do not leave every group in one shard over all storage topics.")


@app.command()
def block(
    topic: TopicArgument, url: UrlOption = "", key: KeyOption = "", as_json: JsonOption = False
) -> None:
    """Refuse what is produced; what is there stays readable."""
    _do(lambda topics: topics.block(topic), f"{topic} takes no messages", url, key, as_json)


@app.command()
def unblock(
    topic: TopicArgument, url: UrlOption = "", key: KeyOption = "", as_json: JsonOption = False
) -> None:
    """Take messages again."""
    _do(lambda topics: topics.unblock(topic), f"{topic} takes messages", url, key, as_json)


@app.command()
def delete(
    topic: TopicArgument, url: UrlOption = "", key: KeyOption = "", as_json: JsonOption = False
) -> None:
    """Delete a topic; its messages stay, and it can be restored, until it is purged."""
    told = f"{topic} is deleted; `waystation topic restore {topic}` brings it back"
    _do(lambda topics: topics.delete(topic), told, url, key, as_json)


@app.command()
def restore(
    topic: TopicArgument, url: UrlOption = "", key: KeyOption = "", as_json: JsonOption = False
) -> None:
    """Bring a deleted topic back with all its messages."""
    _do(lambda topics: topics.restore(topic), f"{topic} is back", url, key, as_json)


@app.command()
def purge(
    topic: TopicArgument,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    url: UrlOption = "",
    key: KeyOption = "",
    as_json: JsonOption = False,
) -> None:
    """Delete the messages of a deleted topic for good; its name is free again."""
    if not yes and not typer.confirm(f"Delete all messages of {topic} for good?"):
        raise typer.Exit(1)
    _do(lambda topics: topics.purge(topic), f"{topic} is gone", url, key, as_json)


def _do(
    verb: Callable[[Topics], Topic | None], told: str, url: str, key: str, as_json: bool
) -> None:
    with open_station(url, key, scope="admin") as station:
        changed = verb(station.topics)
    if changed is not None:
        _tell(changed, told, as_json=as_json)
    elif as_json:
        emit_json({})
    else:
        console.print(Text(told), soft_wrap=True)


def _tell(topic: Topic, told: str, *, as_json: bool) -> None:
    if as_json:
        emit_json(topic)
        return
    console.print(Text(told), soft_wrap=True)
    if topic.warning:
        note(topic.warning)


def _options(texts: list[str] | None) -> dict[str, Any]:
    return read_options(texts, dict.fromkeys(TopicOptions.__struct_fields__), {})


def _kept(options: TopicOptions) -> str:
    """Return a sentence about the limits of a topic."""
    size, seconds = options.max_bytes, options.max_age_seconds
    room = "any number of bytes" if size is None else _binary(size)
    if seconds is None:
        return f"each keeps {room}, forever"
    return f"each keeps {room}, for {_days(seconds)} unless a reader needs it longer"


def _binary(size: int) -> str:
    """Return a number of bytes with the largest unit that leaves it whole."""
    for power, unit in ((40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")):
        if size >= 1 << power and size % (1 << power) == 0:
            return f"{size >> power} {unit}"
    return f"{size:,} bytes"


def _days(seconds: float) -> str:
    """Return a duration in days, if it is whole days, or in seconds."""
    days, rest = divmod(seconds, 86_400)
    return f"{days:.0f} day{'' if days == 1 else 's'}" if days and not rest else f"{seconds:g} s"


def _partitions(count: int) -> str:
    return f"{count} partition{'' if count == 1 else 's'}"


def _chain(topic: Topic) -> str:
    """Partitions of all storage topics; the one in brackets is produced to."""
    counts = [str(each.partitions) for each in topic.storage]
    if len(counts) > 1:
        counts[topic.produce_pointer] = f"[{counts[topic.produce_pointer]}]"
    return " → ".join(counts)
