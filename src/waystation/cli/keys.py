"""`waystation keys`: create, list and revoke API keys, straight in the catalogue."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Annotated, TypeVar

import typer
from rich.text import Text

from waystation.access import Scope, new_key
from waystation.catalogue import Catalogue, KeyRecord, ProjectRecord
from waystation.cli.options import ConfigOption, DataOption, JsonOption, read_settings
from waystation.cli.output import console, emit_json, emit_table
from waystation.errors import InvalidInputError, NotFoundError
from waystation.node import open_catalogue
from waystation.runtime.clock import Clock
from waystation.runtime.ids import RandomIds, require_name

_T = TypeVar("_T")
_DAY_MS = 86_400_000
_DAYS_MAX = 36_500
_LABEL_MAX = 200

app = typer.Typer(no_args_is_help=True, help="API keys of projects.")

ProjectOption = Annotated[str, typer.Option("--project", help="Project the key belongs to.")]


@app.command()
def create(
    project: ProjectOption = "default",
    scope: Annotated[str, typer.Option(help="read, write (reads too) or admin (all).")] = "write",
    label: Annotated[str, typer.Option(help="What the key is for.")] = "",
    days: Annotated[float, typer.Option(help="Days until it expires; 0 = never.")] = 0,
    new_project: Annotated[
        bool, typer.Option("--new-project", help="Create the project too.")
    ] = False,
    data: DataOption = None,
    config: ConfigOption = "",
    as_json: JsonOption = False,
) -> None:
    """Create a key. Its text is shown this once."""
    if scope not in list(Scope):
        raise InvalidInputError(f"There is no scope {scope!r}.", hint="Use read, write or admin.")
    if not 0 <= days <= _DAYS_MAX:
        raise InvalidInputError(f"--days must be between 0 and {_DAYS_MAX:,}.")
    if not label.isprintable() or len(label) > _LABEL_MAX:
        raise InvalidInputError(f"A label is at most {_LABEL_MAX} printable characters.")
    require_name(project, field="project")
    clock = Clock()
    text, record = new_key(
        RandomIds(),
        project=project,
        scope=Scope(scope),
        label=label,
        now_ms=clock.now_ms(),
        expires_ms=clock.now_ms() + round(days * _DAY_MS) if days else 0,
    )

    async def work(catalogue: Catalogue) -> None:
        if new_project:
            created = ProjectRecord(name=project, created_ms=clock.now_ms())
            await catalogue.add_project(created, key=record)
        else:
            await catalogue.add_key(record)

    _with_catalogue(config, data, work)
    if as_json:
        emit_json({**_shown(record), "key": text})
        return
    console.print(Text(text, style="bold"), soft_wrap=True)
    console.print(
        Text(f"{scope} key {record.id} of project {project}; shown this once.", style="dim")
    )


@app.command("list")
def list_keys(
    project: Annotated[str | None, typer.Option("--project", help="Only of this project.")] = None,
    data: DataOption = None,
    config: ConfigOption = "",
    as_json: JsonOption = False,
) -> None:
    """List keys, revoked ones included; secrets are nowhere."""

    async def work(catalogue: Catalogue) -> list[KeyRecord]:
        return await catalogue.keys(project)

    shown = [_shown(record) for record in _with_catalogue(config, data, work)]
    if as_json:
        emit_json(shown)
        return
    columns = ("id", "project", "scope", "label", "state")
    rows = [[*(each[name] for name in columns), _day(each["expires_ms"])] for each in shown]
    whose = f"Project {project} has no keys" if project else "No keys yet"
    emit_table((*columns, "expires"), rows, empty=f"{whose}: `waystation keys create` makes one.")


@app.command()
def revoke(
    key_id: Annotated[str, typer.Argument(help="Id of the key, from `waystation keys list`.")],
    data: DataOption = None,
    config: ConfigOption = "",
    as_json: JsonOption = False,
) -> None:
    """Revoke a key. It stops working within five seconds."""

    async def work(catalogue: Catalogue) -> bool:
        return await catalogue.revoke_key(None, key_id, now_ms=Clock().now_ms())

    if not _with_catalogue(config, data, work):
        raise NotFoundError(f"There is no key {key_id}.", hint="`waystation keys list` shows them.")
    if as_json:
        emit_json({"id": key_id, "state": "revoked"})
    else:
        console.print(Text(f"revoked {key_id}"))


def _with_catalogue(
    config: str, data: str | None, work: Callable[[Catalogue], Awaitable[_T]]
) -> _T:
    async def run() -> _T:
        catalogue = open_catalogue(read_settings(config, data=data).config)
        await catalogue.open()
        try:
            return await work(catalogue)
        finally:
            await catalogue.close()

    return asyncio.run(run())


def _day(at_ms: object) -> str:
    """When a key expires, in UTC; one without an end has none."""
    if not isinstance(at_ms, int):
        return "never"
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M")


def _shown(record: KeyRecord) -> dict[str, object]:
    expired = record.expires_ms and record.expires_ms <= Clock().now_ms()
    return {
        "id": record.id,
        "project": record.project,
        "scope": record.scopes[-1],
        "label": record.label,
        "state": "revoked" if record.revoked_ms else "expired" if expired else "valid",
        "created_ms": record.created_ms,
        "expires_ms": record.expires_ms or None,
    }
