"""`waystation history forget`: blank the payloads of a person in the lake."""

from __future__ import annotations

import getpass
from typing import TYPE_CHECKING, Annotated

import typer

from waystation.cli import history_jobs  # noqa: F401 (adds its commands to the same app)
from waystation.cli.history import LakeOption, MasterOption, MemoryOption, ServerOption, app
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
from waystation.cli.output import console, emit_json, emit_table, problems
from waystation.errors import ExitCode, InvalidInputError, PipelineOffError
from waystation.runtime.clock import Clock
from waystation.store.keys import DEFAULT_PROJECT

if TYPE_CHECKING:
    from waystation.history.lake.forget import ForgottenRows
    from waystation.history.lake.trace import Person
    from waystation.history.sources.options import Location

_ELSEWHERE = (
    "Copies outside of the lake stay until their retention ends: messages in topics, channels and"
    " pools, dead letters, and transactions in the store and the archive."
)


@app.command()
def forget(
    group: Annotated[str, typer.Option("--group", help="Group of messages.")] = "",
    external_id: Annotated[
        str, typer.Option("--external-id", help="External id of transactions.")
    ] = "",
    recipient_key: Annotated[
        str, typer.Option("--recipient-key", help="Recipient key of pool messages.")
    ] = "",
    project: Annotated[
        str, typer.Option("--project", help="Project of the person.")
    ] = DEFAULT_PROJECT,
    topic: Annotated[
        str, typer.Option("--topic", help="With --group: messages of this topic only.")
    ] = "",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Count the rows, and change nothing.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Skip the confirmation.")] = False,
    ingest: Annotated[
        bool, typer.Option("--ingest/--no-ingest", help="Ingest all logs first; default.")
    ] = True,
    lake: LakeOption = None,
    master: MasterOption = None,
    memory: MemoryOption = None,
    store: StoreOption = None,
    data: DataOption = None,
    url: ServerOption = "",
    key: KeyOption = "",
    config: ConfigOption = "",
    as_json: JsonOption = False,
) -> None:
    """Blank the payloads of a person in the lake, and delete the files that had them.

    Ids, groups, times, counts and states stay, so that the audit finds all rows. Pass one of
    --group, --external-id and --recipient-key. Messages, deliveries and transactions that they
    caused are blanked, too.
    """
    person = _person(project, group, topic, external_id, recipient_key)
    target = find_target(
        config,
        url=url,
        key=key,
        store=store,
        data=data,
        lake=lake,
        history_master=master,
        history_memory=memory,
    )
    from waystation.history.lake.forget import forget as forget_person  # noqa: PLC0415
    from waystation.history.lake.table import Lake  # noqa: PLC0415
    from waystation.history.lease import history_lease  # noqa: PLC0415 (help need not wait for it)

    place, now_ms = Lake(target.settings.lake_place), Clock().now_ms
    with opened_store(target) as access, history_lease(access.resolve(), "forget"):
        if ingest:
            with job_bar(hidden=as_json) as tell:
                _ingest_all(target, access, tell, quiet=as_json)
        check_lake(target.settings)
        planned = forget_person(place, person, now_ms, dry_run=True)
        if dry_run:
            _show(planned, as_json=as_json, is_done=False)
            return
        if not yes:
            question = f"Delete the payloads of {planned.total:,} rows permanently?"
            if not typer.confirm(question, err=True):
                raise typer.Exit(ExitCode.FAILED)
        # Record the operation first, so that a crash leaves an incomplete operation and not an
        # unrecorded one.
        _record(access, person, planned)
        done = forget_person(place, person, now_ms)
    _show(done, as_json=as_json, is_done=True)


def _person(project: str, group: str, topic: str, external_id: str, recipient_key: str) -> Person:
    """Return the person. Raise InvalidInputError unless one option names the person."""
    from waystation.history.packages import require_packages  # noqa: PLC0415

    if sum(map(bool, (group, external_id, recipient_key))) != 1:
        raise InvalidInputError("Pass one of --group, --external-id and --recipient-key.")
    if topic and not group:
        raise InvalidInputError("--topic is an option of --group.")
    require_packages()
    from waystation.history.lake.trace import Person  # noqa: PLC0415

    return Person(
        project=project,
        group=group,
        topic=topic,
        external_id=external_id,
        recipient_key=recipient_key,
    )


def _ingest_all(target: Target, access: Location, tell: Tell, *, quiet: bool) -> None:
    """Ingest all logs, by the server that runs the data pipeline or else by this command."""
    from waystation.history.lease import history_lease  # noqa: PLC0415
    from waystation.history.log_reader import LogReader  # noqa: PLC0415
    from waystation.history.status import wait_for_ingest  # noqa: PLC0415

    with LogReader(access.resolve()) as logs:
        try:
            logs.use(wait_for_ingest)
        except PipelineOffError:
            pass
        else:
            return
    from waystation.history.ingest.job import ingest_job  # noqa: PLC0415 (Spark takes seconds)

    with (
        history_lease(access.resolve()),
        session(target.settings, quiet=quiet) as (spark, lake),
    ):
        job = ingest_job(spark, lake, access, target.settings.history)
        job.run(on_reading=lambda read, total: tell(read, total, "rows"))


def _record(access: Location, person: Person, planned: ForgottenRows) -> None:
    """Record the operation, without the name of the person."""
    from waystation.history.log_reader import LogReader  # noqa: PLC0415
    from waystation.logs.operations import OperationLog, OperationRecord  # noqa: PLC0415
    from waystation.logs.streams import StreamLogs  # noqa: PLC0415

    kinds = ("group", "external_id", "recipient_key")
    detail = {
        "by": _user(),
        "of": next(kind for kind in kinds if getattr(person, kind)),
        "rows": planned.rows,
    }
    record = OperationRecord(project=person.project, kind="forget", detail=detail)
    with LogReader(access.resolve()) as logs:
        logs.use(lambda store: OperationLog(StreamLogs(store)).write(record))


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return ""  # The user id of the process has no name, as in some containers.


def _show(found: ForgottenRows, *, as_json: bool, is_done: bool) -> None:
    if as_json:
        emit_json(found)
        return
    emit_table(
        ("table", "rows"),
        [(table, f"{rows:,}") for table, rows in found.rows.items()],
        empty="The lake has no payloads of this person.",
        numbers=("rows",),
    )
    if is_done:
        console.print(
            f"{found.total:,} rows are blank, and {found.deleted_files:,} files are deleted.",
            soft_wrap=True,
        )
    if found.open_transactions:
        problems.print(
            f"{found.open_transactions:,} transactions have not ended. Run the command again after"
            " their end, because they record further data until then.",
            soft_wrap=True,
        )
    if found.uncommitted_files:
        problems.print(
            f"{found.uncommitted_files:,} files of interrupted jobs have such rows, too. Vacuum"
            " deletes them after history.vacuum_hours.",
            soft_wrap=True,
        )
    problems.print(_ELSEWHERE, style="dim", soft_wrap=True)
