"""`waystation pipeline`: define pipelines, pause them, look at them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.text import Text

from waystation.cli.options import JsonOption, KeyOption, UrlOption
from waystation.cli.output import console, emit_json, emit_table, one_line, printable
from waystation.cli.patience import note
from waystation.cli.station import open_station

app = typer.Typer(no_args_is_help=True, help="Pipelines: lists of steps, in versions.")

NameArgument = Annotated[str, typer.Argument(help="Name of the pipeline.")]


@app.command("list")
def list_(url: UrlOption = "", key: KeyOption = "", as_json: JsonOption = False) -> None:
    """List pipelines."""
    with open_station(url, key, scope="read") as station:
        found = list(station.pipelines.list())
    if as_json:
        emit_json({"pipelines": found})
        return
    emit_table(
        ("pipeline", "version", "versions", "state"),
        [
            (each.name, each.active, len(each.versions), "paused" if each.paused else "active")
            for each in found
        ],
        empty="No pipelines. Define some with `waystation pipeline put FILE`, or in an app.",
        numbers=("versions",),
    )


@app.command()
def put(
    file: Annotated[Path, typer.Argument(help="JSON: a definition, or a list of them.")],
    url: UrlOption = "",
    key: KeyOption = "",
    as_json: JsonOption = False,
) -> None:
    """Define the pipelines of a file; what is the same already does not change."""
    # Late: the library of the server is needed for this one command.
    from waystation.transactions.pipeline import read_pipelines  # noqa: PLC0415

    # All are read before the first is sent: a bad one changes nothing.
    wanted = read_pipelines(file)
    with open_station(url, key, scope="admin") as station:
        made = [
            station.pipelines.put(
                each.name,
                [msgspec.to_builtins(step) for step in each.steps],
                group=each.group,
                description=each.description,
                startable=each.startable,
                snapshot=each.snapshot,
                on_failure=each.on_failure,
                record=each.record,
                redact=list(each.redact),
            )
            for each in wanted
        ]
    if as_json:
        emit_json({"pipelines": made})
        return
    for each in made:
        console.print(Text(f"{each.name} has version {each.active}"), soft_wrap=True)
        for sentence in each.unserved:
            note(sentence)


@app.command()
def show(
    pipeline: NameArgument,
    version: Annotated[str, typer.Option("--version", help="Another than the active one.")] = "",
    url: UrlOption = "",
    key: KeyOption = "",
    as_json: JsonOption = False,
) -> None:
    """Show the steps of a pipeline, and which of them nobody serves."""
    with open_station(url, key, scope="read") as station:
        found = station.pipelines.get(pipeline)
        definition = station.pipelines.version(pipeline, version) if version else found.definition
    if as_json:
        emit_json(definition if version else found)
        return
    state = "paused" if found.paused else "active"
    told = f"{pipeline} is {state}, version {definition.version}, node group {definition.group}"
    console.print(Text(told), soft_wrap=True)
    if definition.description:
        console.print(Text(f"  {one_line(definition.description)}", style="dim"))
    if not version and (older := found.versions[1:]):
        console.print(Text(f"  before it {', '.join(older)}", style="dim"), soft_wrap=True)
    rows = [
        (
            place,
            step.type,
            printable(msgspec.json.encode(step.options).decode()) if step.options else "",
        )
        for place, step in enumerate(definition.steps, 1)
    ]
    emit_table(("place", "step", "options"), rows, empty="No steps.", numbers=("place",))
    if not version:
        for sentence in found.unserved:
            note(sentence)


@app.command()
def pause(
    pipeline: NameArgument, url: UrlOption = "", key: KeyOption = "", as_json: JsonOption = False
) -> None:
    """Hold what would begin a pipeline; what is under way goes on."""
    with open_station(url, key, scope="admin") as station:
        changed = station.pipelines.pause(pipeline)
    if as_json:
        emit_json(changed)
    else:
        console.print(Text(f"{pipeline} is paused"), soft_wrap=True)


@app.command()
def resume(
    pipeline: NameArgument, url: UrlOption = "", key: KeyOption = "", as_json: JsonOption = False
) -> None:
    """Let a pipeline begin again, first what it held."""
    with open_station(url, key, scope="admin") as station:
        changed = station.pipelines.resume(pipeline)
    if as_json:
        emit_json(changed)
    else:
        console.print(Text(f"{pipeline} is active"), soft_wrap=True)


@app.command()
def delete(
    pipeline: NameArgument, url: UrlOption = "", key: KeyOption = "", as_json: JsonOption = False
) -> None:
    """Retire a pipeline: nothing begins it any more, what was started goes on."""
    with open_station(url, key, scope="admin") as station:
        station.pipelines.delete(pipeline)
    if as_json:
        emit_json({})
    else:
        console.print(Text(f"{pipeline} is retired"), soft_wrap=True)
