"""`waystation subscription`: deliver a topic to an endpoint, and see to what was not delivered."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer
from rich.text import Text

from waystation.cli.option_words import read_options
from waystation.cli.options import JsonOption, KeyOption, SubscriptionArgument, UrlOption
from waystation.cli.output import console, emit_json, emit_table, one_line, printable, quoted
from waystation.cli.patience import note
from waystation.cli.positions import MOMENT, parse_moment
from waystation.cli.station import open_station
from waystation.cli.subscription_look import dead, group, groups, shards, show_standing, watch
from waystation.cli.subscription_operate import operations, purge, redrive, reset, skip
from waystation.cli.topic_messages import time_of
from waystation.errors import ConflictError, ExitCode, InvalidInputError
from waystation.runtime.clock import Clock
from waystation.runtime.durations import parse_duration

if TYPE_CHECKING:
    from waystation.client import Subscription

app = typer.Typer(
    no_args_is_help=True,
    help="Subscriptions: topics that are delivered to endpoints, in the order of their groups.",
)

_OPTIONS = "An option as name=value, such as poison=skip or retry.attempts=3; may be repeated."
OptionOption = Annotated[list[str] | None, typer.Option("--option", "-o", help=_OPTIONS)]
_ENDPOINT = "https://…, pipeline:<name>, channel:<name> or pool:<name>."
#: What an operator may do about it.
_NEXT = {
    "dead": "subscription redrive {name} --message {message}",
    "dead_full": "subscription dead {name}",
    "endpoint_disabled": "deliveries enable {target}",
    "parked": "subscription redrive {name} --group {group}",
    "paused": "subscription resume {name}",
    "record_full": "history ingest",
}
YesOption = Annotated[bool, typer.Option("--yes", help="Do not ask.")]


@app.command()
def create(
    name: SubscriptionArgument,
    topic: Annotated[str, typer.Option("--topic", help="The topic that it delivers.")],
    endpoint: Annotated[str, typer.Option("--endpoint", help=f"Where to: {_ENDPOINT}")],
    number: Annotated[
        int | None, typer.Option("--shards", help="How many; default: as suits the topic.", min=1)
    ] = None,
    start: Annotated[
        str, typer.Option("--from", help=f"Where it begins: beginning, end, {MOMENT}")
    ] = "end",
    options: OptionOption = None,
    url: UrlOption = "",
    key: KeyOption = "",
    as_json: JsonOption = False,
) -> None:
    """Create a subscription, which delivers at once; prints the secret that signs, this once."""
    chosen: Any = _options(options)
    begin: Any = start if start in ("beginning", "end") else parse_moment(start, clock=Clock())
    with open_station(url, key, scope="admin") as station:
        try:
            made = station.subscriptions.create(
                name, topic=topic, endpoint=endpoint, shards=number, start=begin, **chosen
            )
        except ConflictError as error:
            error.hint = f"See it with `waystation subscription show {name}`, or take another name."
            raise
    _tell(made, f"{name} delivers {topic} to {endpoint}, {_shards(made.shards)}", as_json=as_json)
    if made.secret and not as_json:
        console.print(Text(f"  signed with {made.secret}", style="dim"), soft_wrap=True)
        note("The secret is not shown again; `subscription secret --rotate` makes another.")
    if made.warning and not as_json:
        note(made.warning)


@app.command()
def change(
    name: SubscriptionArgument,
    endpoint: Annotated[
        str | None, typer.Option("--endpoint", help=f"Deliver to: {_ENDPOINT}")
    ] = None,
    options: OptionOption = None,
    url: UrlOption = "",
    key: KeyOption = "",
    as_json: JsonOption = False,
) -> None:
    """Change endpoint or options; what is not named stays. It holds from the next request on."""
    chosen: Any = _options(options)
    if not chosen and endpoint is None:
        raise InvalidInputError(
            "Nothing to change.", hint="Give options as -o name=value, or --endpoint."
        )
    with open_station(url, key, scope="admin") as station:
        changed = station.subscriptions.change(name, endpoint=endpoint, **chosen)
    _tell(changed, f"{name} is changed, version {changed.version}", as_json=as_json)


@app.command("list")
def list_(url: UrlOption = "", key: KeyOption = "", as_json: JsonOption = False) -> None:
    """List subscriptions."""
    with open_station(url, key, scope="read") as station:
        found = list(station.subscriptions.list())
    if as_json:
        emit_json({"subscriptions": found})
        return
    emit_table(
        ("subscription", "topic", "endpoint", "state", "shards", "created"),
        [
            (
                each.name,
                each.topic,
                printable(each.endpoint),
                _state(each),
                each.shards,
                time_of(each.created_ms),
            )
            for each in found
        ],
        empty="No subscriptions. Make one with `waystation subscription create NAME`.",
        numbers=("shards",),
    )


@app.command()
def show(
    name: SubscriptionArgument,
    url: UrlOption = "",
    key: KeyOption = "",
    as_json: JsonOption = False,
) -> None:
    """Show a subscription: what it delivers where, its options, and how its shards stand."""
    with open_station(url, key, scope="read") as station:
        found = station.subscriptions.get(name)
        standing = station.subscriptions.shards(name)
    if as_json:
        emit_json({"subscription": found, "standing": standing})
        return
    head = f"{name} delivers {found.topic} to {printable(found.endpoint)}"
    console.print(Text(f"{head}; {_state(found)}, version {found.version}"), soft_wrap=True)
    if found.paused and found.paused_reason:
        console.print(Text(f"  because: {one_line(found.paused_reason)}", style="yellow"))
    for option, value in found.options.items():
        shown = printable(msgspec.json.encode(value).decode())
        console.print(Text(f"  {option} = {shown}", style="dim"), soft_wrap=True)
    show_standing(standing)


@app.command()
def pause(
    name: SubscriptionArgument,
    until: Annotated[
        str, typer.Option("--until", help="A time (2026-11-15T12:00), or for how long (10m).")
    ] = "",
    reason: Annotated[str, typer.Option("--reason", help="Why; `why` and `show` tell it.")] = "",
    url: UrlOption = "",
    key: KeyOption = "",
    as_json: JsonOption = False,
) -> None:
    """Stop delivering, until a time or until `resume`; requests under way come to their end."""
    moment = _later(until) if until else None
    with open_station(url, key) as station:
        paused = station.subscriptions.pause(name, until=moment, reason=reason)
    end = f"until {time_of(paused.paused_until_ms)}" if paused.paused_until_ms else "until `resume`"
    _tell(paused, f"{name} delivers nothing {end}", as_json=as_json)


@app.command()
def resume(
    name: SubscriptionArgument,
    url: UrlOption = "",
    key: KeyOption = "",
    as_json: JsonOption = False,
) -> None:
    """Deliver again, and at once: a paused subscription, or one whose endpoint was repaired."""
    with open_station(url, key) as station:
        resumed = station.subscriptions.resume(name)
    _tell(resumed, f"{name} delivers", as_json=as_json)


@app.command()
def delete(
    name: SubscriptionArgument,
    yes: YesOption = False,
    url: UrlOption = "",
    key: KeyOption = "",
    as_json: JsonOption = False,
) -> None:
    """Delete a subscription with its retries and dead letters, for good; the topic stays."""
    if not yes and not typer.confirm(f"Delete {name} with its retries and dead letters?"):
        raise typer.Exit(ExitCode.FAILED)
    with open_station(url, key, scope="admin") as station:
        station.subscriptions.delete(name)
    if as_json:
        emit_json({})
    else:
        console.print(Text(f"{name} is deleted"))


app.command()(shards)
app.command()(watch)
app.command()(groups)
app.command()(group)
app.command()(dead)
app.command()(redrive)
app.command()(skip)
app.command()(purge)
app.command()(reset)
app.command()(operations)


@app.command("test")
def send_sample(
    name: SubscriptionArgument,
    url: UrlOption = "",
    key: KeyOption = "",
    as_json: JsonOption = False,
) -> None:
    """Send one made-up, signed message to the endpoint; print request and reply.

    A success closes the circuit breaker of the endpoint.
    """
    with open_station(url, key) as station:
        sample = station.subscriptions.test(name)
    if as_json:
        emit_json(sample)
    else:
        console.print(Text(printable(sample.request), style="bold"), soft_wrap=True)
        for header, value in sample.headers:
            console.print(Text(printable(f"{header}: {value}"), style="dim"), soft_wrap=True)
        console.print(Text(f"\n{printable(sample.body)}\n"), soft_wrap=True)
        took = f"after {sample.seconds:.3f} s"
        answer = f"{sample.status} {took}" if sample.status else took
        console.print(Text(answer, style="bold red" if sample.problem else "bold green"))
        for text in filter(None, (sample.problem, sample.excerpt)):
            console.print(Text(printable(text)), soft_wrap=True)
    if sample.problem:
        raise typer.Exit(ExitCode.FAILED)


@app.command()
def secret(
    name: SubscriptionArgument,
    rotate: Annotated[bool, typer.Option("--rotate", help="Make a new one.")] = False,
    url: UrlOption = "",
    key: KeyOption = "",
    as_json: JsonOption = False,
) -> None:
    """Make a new signing secret and print it; for a day requests are signed with both."""
    if not rotate:
        raise InvalidInputError(
            "A secret is shown once, when it is made.", hint="Make a new one with --rotate."
        )
    with open_station(url, key, scope="admin") as station:
        made = station.subscriptions.rotate_secret(name)
    if as_json:
        emit_json({"secret": made})
    else:
        console.print(Text(made), soft_wrap=True)


@app.command()
def why(
    name: SubscriptionArgument,
    group: Annotated[str, typer.Option("--group", help="Why this group waits.")] = "",
    message: Annotated[str, typer.Option("--message", help="Where this message is.")] = "",
    shard: Annotated[int | None, typer.Option("--shard", help="Of this shard.", min=0)] = None,
    url: UrlOption = "",
    key: KeyOption = "",
    as_json: JsonOption = False,
) -> None:
    """Tell why it, or a shard, group or message of it, does not get on; exit code 3 if unknown."""
    with open_station(url, key, scope="read") as station:
        reason = station.subscriptions.why(name, group=group, message=message, shard=shard)
    if as_json:
        emit_json(reason)
    else:
        console.print(Text(f"{reason.code}  {one_line(reason.text)}"), soft_wrap=True)
        if following := _NEXT.get(reason.code):
            command = following.format(
                name=name,
                target=reason.facts.get("target", "ENDPOINT"),
                group=quoted(reason.facts.get("group") or group),
                message=quoted(message),
            )
            console.print(Text(f"  go on with: waystation {command}", style="dim"), soft_wrap=True)
    if reason.code == "unknown":
        raise typer.Exit(ExitCode.NOT_FOUND)


def _options(texts: list[str] | None) -> dict[str, Any]:
    from waystation.client.subscriptions import (  # noqa: PLC0415 (help must not wait for HTTP)
        RetryPolicy,
        SubscriptionOptions,
    )

    known = SubscriptionOptions.__annotations__
    return read_options(texts, known, {"retry": RetryPolicy.__annotations__})


def _later(text: str) -> datetime:
    """A time, or in how long."""
    seconds = parse_duration(text)
    if seconds is not None:
        now = datetime.fromtimestamp(Clock().now_ms() / 1000, UTC)
        return now + timedelta(seconds=seconds)
    return parse_moment(text, clock=Clock())


def _tell(subscription: Subscription, told: str, *, as_json: bool) -> None:
    if as_json:
        emit_json(subscription)
    else:
        console.print(Text(printable(told)), soft_wrap=True)


def _state(subscription: Subscription) -> str:
    return "paused" if subscription.paused else subscription.state


def _shards(count: int) -> str:
    return f"{count} shard{'' if count == 1 else 's'}"
