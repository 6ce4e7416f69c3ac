"""`waystation history`: ingest the logs into the lake, show the status, release holds."""

from __future__ import annotations

import signal
import threading
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from waystation.cli.history_session import (
    Target,
    find_target,
    opened_store,
    session,
)
from waystation.cli.job_bar import job_bar
from waystation.cli.options import (
    ConfigOption,
    DataOption,
    JsonOption,
    KeyOption,
    StoreOption,
)
from waystation.cli.output import console, emit_json, emit_table, printable
from waystation.cli.topic_messages import time_of
from waystation.types.history import HistoryStatus

if TYPE_CHECKING:
    from waystation.history.jobs import IngestProgress

LakeOption = Annotated[
    str | None, typer.Option("--lake", help="Folder or URL of the lake; default <data>/lake.")
]
MasterOption = Annotated[
    str | None,
    typer.Option("--master", help="Spark master: local[*], spark://…, yarn, k8s://…, sc://…"),
]
MemoryOption = Annotated[
    str | None,
    typer.Option("--memory", help="Memory of the Spark driver and of each executor, such as 2g."),
]
ServerOption = Annotated[
    str,
    typer.Option(
        "--url", help="Server that names store and lake; default $WAYSTATION_URL, if set."
    ),
]
UiOption = Annotated[
    bool | None,
    typer.Option("--ui/--no-ui", help="Start the Spark UI; default on a terminal."),
]

app = typer.Typer(
    no_args_is_help=True, help="Copy messages and transactions to a lake, and query it."
)


@app.callback()
def root() -> None:
    """Define the group of commands. It has no options of its own."""


@app.command()
def release(
    consumer: Annotated[
        str,
        typer.Option("--consumer", help="Release only the holds of this Spark consumer."),
    ] = "",
    store: StoreOption = None,
    data: DataOption = None,
    url: ServerOption = "",
    key: KeyOption = "",
    config: ConfigOption = "",
    as_json: JsonOption = False,
) -> None:
    """Release the logs that history holds, until the next ingest.

    With --consumer, release the topics that a Spark stream with this option `consumer` holds. A
    query that still runs holds them again with its next messages.
    """
    from waystation.history.ingest.retention import release_all  # noqa: PLC0415
    from waystation.history.lease import history_lease  # noqa: PLC0415 (as below)
    from waystation.history.log_reader import LogReader  # noqa: PLC0415
    from waystation.history.sources.consumers import release_consumer  # noqa: PLC0415

    target = find_target(config, url=url, key=key, store=store, data=data)
    if consumer:
        with opened_store(target) as access, LogReader(access.resolve()) as logs:
            released = release_consumer(logs, consumer)
        if as_json:
            emit_json({"released": released})
        else:
            console.print(f"Consumer {printable(consumer)} held {released:,} partitions of topics.")
        return
    with (
        opened_store(target) as access,
        history_lease(access.resolve()),
        LogReader(access.resolve()) as logs,
    ):
        released = release_all(logs)
    if as_json:
        emit_json({"released": released})
    else:
        console.print(f"Released the holds of history on {released:,} partitions of logs.")


@app.command()
def consumers(
    store: StoreOption = None,
    data: DataOption = None,
    url: ServerOption = "",
    key: KeyOption = "",
    config: ConfigOption = "",
    as_json: JsonOption = False,
) -> None:
    """List the topics that Spark streams with the option `consumer` hold."""
    from waystation.history.log_reader import LogReader  # noqa: PLC0415 (help need not wait for it)
    from waystation.history.sources.consumers import consumer_holds  # noqa: PLC0415

    target = find_target(config, url=url, key=key, store=store, data=data)
    with opened_store(target) as access, LogReader(access.resolve()) as logs:
        found = consumer_holds(logs)
    if as_json:
        for each in found:
            emit_json(each)
        return
    emit_table(
        ("consumer", "log", "partition", "from offset", "behind"),
        [(each.consumer, each.log, each.partition, each.offset, each.behind) for each in found],
        empty="No Spark stream holds a topic.",
        numbers=("partition", "from offset", "behind"),
    )


@app.command()
def ingest(
    lake: LakeOption = None,
    master: MasterOption = None,
    memory: MemoryOption = None,
    ui: UiOption = None,
    follow: Annotated[
        bool, typer.Option("--follow", help="Repeat every history.every_seconds until stopped.")
    ] = False,
    store: StoreOption = None,
    data: DataOption = None,
    url: ServerOption = "",
    key: KeyOption = "",
    config: ConfigOption = "",
    as_json: JsonOption = False,
) -> None:
    """Ingest the entries that the logs have now into the lake.

    Entries that are in the lake already are not read again.
    """
    target = find_target(
        config,
        url=url,
        key=key,
        store=store,
        data=data,
        lake=lake,
        history_master=master,
        history_memory=memory,
        history_ui=ui,
    )
    stop = _stop_event() if follow else None
    _ingest(target, stop, ui=ui, as_json=as_json)


def _ingest(
    target: Target, stop: threading.Event | None, *, ui: bool | None, as_json: bool
) -> None:
    # Import here, because Spark takes seconds to import and other commands do not need it.
    from waystation.history.ingest.job import ingest_job  # noqa: PLC0415
    from waystation.history.jobs import TriggeredIngest, run_on_trigger  # noqa: PLC0415
    from waystation.history.lease import history_lease  # noqa: PLC0415

    settings = target.settings
    options = settings.history

    def report(outcome: TriggeredIngest) -> None:
        if as_json:
            emit_json(outcome)
        elif outcome.ingested.rows:
            _print_progress(outcome.ingested, settings.lake_place)

    retry = None if stop is None else lambda: not stop.wait(options.every_seconds)
    with (
        job_bar(hidden=as_json) as tell,
        opened_store(target) as access,
        history_lease(access.resolve(), retry=retry),
        session(settings, ui=ui, quiet=as_json) as (spark, lake),
    ):
        job = ingest_job(spark, lake, access, options)

        def reading(read: int, total: int) -> None:
            tell(read, total, "rows")

        if stop is not None:
            every = options.every_seconds
            run_on_trigger(job, every_seconds=every, stop=stop, report=report, on_reading=reading)
            return
        done = job.run(on_reading=reading)
    if as_json:
        emit_json(done)
    else:
        _print_progress(done, settings.lake_place)


def _print_progress(done: IngestProgress, place: str) -> None:
    trimmed = f", {done.gap_rows:,} were gone before they were read" if done.gap_rows else ""
    console.print(f"{done.rows:,} rows are new in {place}{trimmed}.", soft_wrap=True)
    if done.damaged_rows:
        console.print(
            f"log.damaged: {done.damaged_rows:,} entries are missing from the store's logs, and"
            " retention did not remove them. `waystation history audit` lists their ranges.",
            style="red",
            soft_wrap=True,
        )


def _stop_event() -> threading.Event:
    """Return an event that SIGINT and SIGTERM set."""
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    return stop


@app.command()
def status(
    wait: Annotated[
        bool,
        typer.Option("--wait", help="Wait until the lake has all entries that the logs have now."),
    ] = False,
    store: StoreOption = None,
    data: DataOption = None,
    url: ServerOption = "",
    key: KeyOption = "",
    config: ConfigOption = "",
    as_json: JsonOption = False,
) -> None:
    """Show lag, last batch, rows and failures of the data pipeline.

    With --wait, the command fails if no server runs the pipeline, or if the next ingest fails.
    """
    from waystation.history.log_reader import LogReader  # noqa: PLC0415 (help need not wait for it)
    from waystation.history.status import read_status, wait_for_ingest  # noqa: PLC0415

    target = find_target(config, url=url, key=key, store=store, data=data)
    with opened_store(target) as access, LogReader(access.resolve()) as logs:
        found = logs.use(wait_for_ingest) if wait else logs.use(read_status).public
    if as_json:
        emit_json(found)
    else:
        _show(found)


def _show(status: HistoryStatus) -> None:
    """Print one line per field that has a value."""
    lines = {"state": status.state.replace("_", " ")}
    if status.error:
        lines["error"] = f"{status.error} {status.hint}".rstrip()
    lines["lake"] = status.lake
    lines["lag"] = "" if status.lag is None else f"{status.lag:,} messages and records"
    if batch := status.last_batch:
        lines["last batch"] = (
            f"{batch.rows:,} rows in {batch.seconds:,.1f} s, {time_of(batch.ended_ms)}"
        )
    lines |= {"rows": f"{status.rows:,}", "failures": f"{status.failures:,}"}
    for name, value in lines.items():
        if value:
            console.print(Text.assemble((f"{name:<12}", "dim"), printable(value)), soft_wrap=True)
