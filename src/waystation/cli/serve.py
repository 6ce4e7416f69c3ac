"""`waystation dev` and `waystation serve`: run a station until it is told to stop."""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
import sys
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer
from rich.panel import Panel
from rich.text import Text

from waystation import __version__
from waystation.cli.options import ConfigOption, DataOption, JsonOption, StoreOption, read_settings
from waystation.cli.output import console, emit_json
from waystation.config import Config
from waystation.config_sources import COMMAND_DEFAULT, LoadedConfig
from waystation.errors import HistoryMissingError, NoJavaError, SettingsError
from waystation.history.packages import require_spark
from waystation.runtime.logging import configure_logging, logger

if TYPE_CHECKING:
    from waystation.node import Node

    Announce = Callable[[Node, int], None]

_log = logger("station")

_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)
#: What tasks get to end that nobody waits for any more.
_STUBBORN_SECONDS = 1.0
#: Data pipeline of `dev`: rows are in the lake seconds after their messages, and Spark needs about
#: as much memory on a machine with many cores as on one with two. The options of Java make Spark
#: start faster, at the cost of long jobs.
_DEV_HISTORY: dict[str, Any] = {
    "history.every_seconds": 10.0,
    "history.master": "local[2]",
    "history.memory": "1g",
    "history.spark": {
        "spark.driver.extraJavaOptions": (
            "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m -XX:+UseSerialGC -Xshare:auto"
        ),
        "spark.sql.shuffle.partitions": "2",
    },
}

PortOption = Annotated[
    int | None, typer.Option("--port", help="Port; 0 takes any free one.", metavar="N")
]
HistoryOption = Annotated[
    bool | None,
    typer.Option("--history/--no-history", help="Run the data pipeline: ingest into the lake."),
]
AppOption = Annotated[
    str | None,
    typer.Option("--app", help="App whose steps run here, as module:name.", metavar="APP"),
]


def dev(
    app: AppOption = None,
    port: PortOption = None,
    data: DataOption = None,
    config: ConfigOption = "",
    time_machine: Annotated[
        bool, typer.Option("--time-machine", help="Test mode: POST /v1/time/advance moves time.")
    ] = False,
    history: HistoryOption = None,
    as_json: JsonOption = False,
) -> None:
    """Run a whole station on this machine: embedded store, no key, loopback only.

    It runs the data pipeline if Spark and Java are installed.
    """
    loaded = read_settings(
        config,
        defaults={
            "store.durability": "memory",
            "transactions.app": "built-in",
            "transactions.reload": True,
            "history.run": True,
            **_DEV_HISTORY,
        },
        http_port=port,
        data=data,
        auth_insecure=True,
        delivery_loopback=True,
        time_machine=time_machine or None,
        transactions_app=app,
        history_run=history,
    )
    if loaded.config.store.url:
        raise SettingsError(
            "`waystation dev` brings its own store, but store.url is set.",
            hint="Use `waystation serve --insecure` for another store.",
        )
    if not loaded.config.http.is_loopback:
        raise SettingsError(
            "`waystation dev` needs no key, so it listens on loopback only.",
            hint="Use `waystation serve` to be reached from elsewhere.",
        )
    settings, off = _with_pipeline(loaded, is_flag_given=history is not None)
    _run_until_stopped(settings, as_json=as_json, history_off=off)


def _with_pipeline(loaded: LoadedConfig, *, is_flag_given: bool) -> tuple[Config, str]:
    """Return the settings of `dev`, and why the data pipeline is off; empty if it runs.

    If Spark cannot run here, `dev` runs without the pipeline, unless somebody asked for it.
    """
    settings, origin = loaded.config, loaded.origins["history.run"]
    if not settings.history.run:
        return settings, "--no-history" if is_flag_given else f"history.run is false ({origin})"
    if origin != COMMAND_DEFAULT:
        return settings, ""
    try:
        require_spark(settings.history.master, os.environ, settings.data_dir / "history")
    except (HistoryMissingError, NoJavaError) as error:
        history = msgspec.structs.replace(settings.history, run=False)
        settings = msgspec.structs.replace(settings, history=history)
        return settings, f"{error.message} {error.hint}"
    return settings, ""


def serve(
    app: AppOption = None,
    host: Annotated[str | None, typer.Option("--host", help="Address to listen on.")] = None,
    port: PortOption = None,
    data: DataOption = None,
    store: StoreOption = None,
    durability: Annotated[
        str | None,
        typer.Option("--durability", help="disk (default) or memory.", metavar="LEVEL"),
    ] = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Let everyone in, without a key.")
    ] = False,
    ephemeral: Annotated[
        bool, typer.Option("--ephemeral", help="Accept a store that forgets at restart.")
    ] = False,
    history: HistoryOption = None,
    config: ConfigOption = "",
    as_json: JsonOption = False,
) -> None:
    """Run a station for production: keys required, every reply after its fsync."""
    loaded = read_settings(
        config,
        http_host=host,
        http_port=port,
        data=data,
        store_url=store,
        store_durability=durability,
        auth_insecure=insecure or None,
        store_ephemeral=ephemeral or None,
        transactions_app=app,
        history_run=history,
    )
    _run_until_stopped(loaded.config, as_json=as_json)


def _run_until_stopped(settings: Config, *, as_json: bool, history_off: str = "") -> None:
    import uvloop  # noqa: PLC0415 (with the server's libraries: other commands start without them)

    def announce(node: Node, port: int) -> None:
        _announce(node, port, as_json=as_json, history_off=history_off)

    uvloop.run(_run(settings, announce))


async def _run(settings: Config, announce: Announce) -> None:
    configure_logging(format=settings.log.format, level=settings.log.level)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    # Not the loop's own handlers: they end with the loop, and a second signal would then kill the
    # process in its last moments, after everything was put in order.
    for number in _STOP_SIGNALS:
        signal.signal(number, lambda *_: loop.call_soon_threadsafe(stop.set))
    try:
        port = await _serve_data_set(settings, stop, announce)
        while port and not stop.is_set():
            # All that a node has in memory is of the lost data set: it is opened anew, on the same
            # port, for the one that replaces it.
            http = msgspec.structs.replace(settings.http, port=port)
            settings = msgspec.structs.replace(settings, http=http)
            port = await _serve_data_set(settings, stop)
        await _leave_behind()
    finally:
        for number in _STOP_SIGNALS:
            signal.signal(number, signal.SIG_IGN)


async def _serve_data_set(
    settings: Config, stop: asyncio.Event, announce: Announce | None = None
) -> int:
    """Serve until the process is told to stop or the store has a data set that replaces this one.

    Returns the port; 0 when the signal came before the node was open. `announce` is None for a
    station that was announced before.
    """
    from waystation.api.server import ApiServer, settle_memory  # noqa: PLC0415
    from waystation.node import open_node  # noqa: PLC0415

    node = await _opened_unless_stopped(open_node(settings), stop)
    if node is None:
        return 0
    try:
        server = ApiServer(node)
        port = await server.start()
        try:
            settle_memory()
            if announce is None:
                _log.info("data set replaced", dataset=node.opened.dataset)
            else:
                announce(node, port)
            await _first_of(stop, node.opened.store.data_set.replaced)
            _log.info("stopping")
        finally:
            await server.stop()
    finally:
        await node.close()
    return port


async def _first_of(*events: asyncio.Event) -> None:
    """Wait until one of the events is set."""
    tasks = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()


async def _leave_behind() -> None:
    """Ends the process here if a task of a user's step will not end: asyncio waits for ever.

    Everything was put in order before, and what the step held was given back.
    """
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    if not tasks:
        return
    _, stubborn = await asyncio.wait(tasks, timeout=_STUBBORN_SECONDS)
    if stubborn:
        _log.warning("steps do not end; the process ends without them", count=len(stubborn))
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


async def _opened_unless_stopped(
    opening: Coroutine[Any, Any, Node], stop: asyncio.Event
) -> Node | None:
    """The node; None when a signal came first. A store can take long to load."""
    tasks = (asyncio.ensure_future(opening), asyncio.ensure_future(stop.wait()))
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    if tasks[0].done():
        tasks[1].cancel()
        return tasks[0].result()
    tasks[0].cancel()
    await asyncio.gather(tasks[0], return_exceptions=True)
    return None


def _announce(node: Node, port: int, *, as_json: bool, history_off: str) -> None:
    host = node.settings.http.host
    url = f"http://{f'[{host}]' if ':' in host else host}:{port}{node.settings.http.prefix}"
    facts = {
        "url": url,
        "version": __version__,
        "store": str(node.opened.store.address),
        "store_version": node.opened.facts.version,
        "durability": node.opened.durability,
        "keys": "not needed" if node.gate.insecure else "required",
        "app": node.settings.transactions.app or "none",
        "history": _history_line(node.settings, history_off),
        "dataset": node.opened.dataset,
        "notes": node.opened.notes,
    }
    if as_json or not console.is_terminal:
        emit_json(facts)
        return
    lines = Text()
    for name in ("store", "durability", "keys", "app", "history"):
        lines.append(f"{name:<12}", style="dim")
        lines.append(f"{facts[name]}\n")
    lines.append("\nReference   ", style="dim")
    lines.append(f"{url}/reference\n")
    lines.append("Publish     ", style="dim")
    lines.append(f"curl -X PUT {url}/channel/news/message/m1 -d 7\n")
    lines.append("Stop        ", style="dim")
    lines.append("Ctrl-C")
    console.print(Panel(lines, title=f"Waystation {__version__}  {url}", title_align="left"))


def _history_line(settings: Config, off: str) -> str:
    """Return where the lake is and how to query it, or why the data pipeline is off."""
    if not settings.history.run:
        return f"off: {off or 'history.run is false'}"
    command = ["waystation", "history", "sql"]
    if settings.history.lake:
        command += ["--lake", settings.history.lake]
    elif settings.data != Config().data:
        command += ["--data", settings.data]
    command.append("select * from waystation.messages")
    return f"lake in {settings.public_lake}; query it: {shlex.join(command)}"
