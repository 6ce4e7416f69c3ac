"""`waystation history audit`, `refresh` and `report`: jobs over the lake."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from waystation.cli.history import (
    LakeOption,
    MasterOption,
    MemoryOption,
    ServerOption,
    UiOption,
    app,
)
from waystation.cli.history_session import (
    Target,
    check_lake,
    find_target,
    opened_store,
    session,
)
from waystation.cli.job_bar import Tell, job_bar
from waystation.cli.options import (
    ConfigOption,
    DataOption,
    JsonOption,
    KeyOption,
    StoreOption,
)
from waystation.cli.output import console, emit_json, emit_table, printable
from waystation.errors import ExitCode, HistoryBusyError
from waystation.runtime.clock import Clock

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from waystation.history.audit import Findings
    from waystation.history.lake.rollups import RefreshProgress
    from waystation.history.lake.table import Lake
    from waystation.history.lease import Job
    from waystation.history.sources.options import Location

#: Attempts of an ingest while other processes commit first.
_ATTEMPTS_MAX = 20


@contextmanager
def _job(
    target: Target,
    job: Job,
    *,
    ui: bool | None,
    quiet: bool,
    check: Callable[[Location], None] = lambda access: None,
) -> Iterator[tuple[SparkSession, Lake, Location]]:
    """Yield a session, the lake and the store, and hold the lease of the job.

    Call `check` before Spark starts, because that takes seconds. Raise HistoryBusyError if another
    process has the lease.
    """
    from waystation.history.lease import history_lease  # noqa: PLC0415 (Spark takes seconds)

    with opened_store(target) as access, history_lease(access.resolve(), job):
        check(access)
        with session(target.settings, ui=ui, quiet=quiet) as (spark, lake):
            yield spark, lake, access


@app.command()
def audit(
    live: Annotated[
        bool, typer.Option("--live/--no-live", help="Check against the store and the archive, too.")
    ] = True,
    lake: LakeOption = None,
    master: MasterOption = None,
    memory: MemoryOption = None,
    ui: UiOption = None,
    store: StoreOption = None,
    data: DataOption = None,
    url: ServerOption = "",
    key: KeyOption = "",
    config: ConfigOption = "",
    as_json: JsonOption = False,
) -> None:
    """Prove that nothing was lost, doubled or overtaken. Exits with 1 if there are findings."""
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
    with job_bar(hidden=as_json) as tell:
        check = _audit_live if live else _audit_lake
        findings = check(target, tell, ui=ui, quiet=as_json)
    if as_json:
        emit_json(findings)
    else:
        _show(findings)
    if findings.total:
        raise typer.Exit(ExitCode.FAILED)


def _audit_live(target: Target, tell: Tell, *, ui: bool | None, quiet: bool) -> Findings:
    from waystation.archive import archive_place  # noqa: PLC0415
    from waystation.history.audit import Live, audit  # noqa: PLC0415
    from waystation.history.ingest.job import ingest_job  # noqa: PLC0415
    from waystation.history.progress import phase_watch  # noqa: PLC0415

    settings = target.settings
    delay_ms = round(settings.transactions.archive_delay_seconds * 1000)
    archive = archive_place(settings.archive.url, folder=settings.data_dir)

    def check(access: Location) -> None:
        Live(access.resolve(), archive).close()

    with _job(target, "audit", ui=ui, quiet=quiet, check=check) as (spark, lake, access):
        ingest = ingest_job(spark, lake, access, settings.history)
        before_ms = Clock().now_ms() - delay_ms

        def reading(read: int, total: int) -> None:
            tell(read, total, "rows")

        with Live(access.resolve(), archive) as live, phase_watch(spark, tell) as start_phase:
            return audit(
                spark,
                lake,
                live=live,
                ingest=lambda: _retry_busy(lambda: ingest.run(on_reading=reading)),
                archived_before_ms=before_ms,
                on_phase=start_phase,
            )


def _retry_busy(ingest: Callable[[], object]) -> None:
    """Ingest, and retry while another ingest commits to the same tables first."""
    for _ in range(_ATTEMPTS_MAX):
        try:
            ingest()
        except HistoryBusyError:
            continue
        return
    ingest()


def _audit_lake(target: Target, tell: Tell, *, ui: bool | None, quiet: bool) -> Findings:
    from waystation.history.audit import audit  # noqa: PLC0415
    from waystation.history.progress import phase_watch  # noqa: PLC0415

    check_lake(target.settings)
    with (
        session(target.settings, ui=ui, quiet=quiet) as (spark, lake),
        phase_watch(spark, tell) as start_phase,
    ):
        return audit(spark, lake, on_phase=start_phase)


def _show(findings: Findings) -> None:
    for kind, count in findings.checked.items():
        console.print(f"{count:,} {kind}", style="dim")
    for note in findings.notes:
        console.print(printable(note), style="dim", markup=False, soft_wrap=True)
    emit_table(
        ("check", "subject", "id", "position", "what"),
        [
            tuple(map(printable, (each.check, each.subject, each.id, each.position, each.text)))
            for each in findings.examples
        ],
        empty="Nothing was lost, doubled or overtaken.",
        whole=("check", "id"),
    )
    for check, count in findings.counts.items():
        listed = sum(each.check == check for each in findings.examples)
        if count > listed:
            console.print(f"{check}: {count:,} in all, {listed} are shown", style="yellow")


@app.command()
def refresh(
    lake: LakeOption = None,
    master: MasterOption = None,
    memory: MemoryOption = None,
    ui: UiOption = None,
    store: StoreOption = None,
    data: DataOption = None,
    url: ServerOption = "",
    key: KeyOption = "",
    config: ConfigOption = "",
    as_json: JsonOption = False,
) -> None:
    """Update the rollup tables from the lake.

    Only time buckets with new rows are computed.
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
    with (
        job_bar(hidden=as_json) as tell,
        _job(
            target, "refresh", ui=ui, quiet=as_json, check=lambda _: check_lake(target.settings)
        ) as (spark, where, _),
    ):
        done = _refresh(spark, where, tell)
    if as_json:
        emit_json(done)
        return
    emit_table(
        ("table", "buckets"),
        [(table, f"{rows:,}") for table, rows in done.rows.items()],
        empty="No new rows since the last refresh.",
        numbers=("buckets",),
    )


def _refresh(spark: SparkSession, lake: Lake, tell: Tell) -> RefreshProgress:
    from waystation.history.lake.rollups import refresh_rollups  # noqa: PLC0415

    def note(done: RefreshProgress) -> None:
        tell(done.days - done.left, done.days, "days")

    return refresh_rollups(spark, lake, note)


@app.command()
def report(
    out: Annotated[Path, typer.Option("--out", help="File of the report.", metavar="FILE")] = Path(
        "waystation-report.html"
    ),
    days: Annotated[
        float, typer.Option("--days", min=0.01, help="Days before now that the report covers.")
    ] = 7,
    title: Annotated[str, typer.Option("--title", help="Title of the report.")] = "",
    lake: LakeOption = None,
    master: MasterOption = None,
    memory: MemoryOption = None,
    ui: UiOption = None,
    store: StoreOption = None,
    data: DataOption = None,
    url: ServerOption = "",
    key: KeyOption = "",
    config: ConfigOption = "",
    as_json: JsonOption = False,
) -> None:
    """Write a report with charts as one HTML file.

    The rollup tables are updated first.
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
    from waystation.history.report.page import write_report  # noqa: PLC0415 (Spark takes seconds)

    with (
        job_bar(hidden=as_json) as tell,
        _job(
            target, "refresh", ui=ui, quiet=as_json, check=lambda _: check_lake(target.settings)
        ) as (spark, where, _),
    ):
        _refresh(spark, where, tell)
        tell(0, 1, "page")
        written = write_report(spark, where, out, now_ms=Clock().now_ms(), days=days, title=title)
    if as_json:
        emit_json(written)
    else:
        console.print(f"{written.file} ({written.bytes:,} bytes)", soft_wrap=True, markup=False)
