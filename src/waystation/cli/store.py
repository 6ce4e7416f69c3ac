"""`waystation store`: check and repair the embedded store's files, and accept a lost data set."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from waystation.cli.options import ConfigOption, DataOption, JsonOption, StoreOption, read_settings
from waystation.cli.output import console, emit_json, emit_table
from waystation.errors import ExitCode, InvalidInputError, SettingsError, StoreError
from waystation.node import accept_loss
from waystation.store.embedded.repair import (
    MANIFEST,
    RESTORE,
    StoreCheck,
    check_files,
    repair_files,
    stopped_store,
)

app = typer.Typer(no_args_is_help=True, help="Check, repair or accept the state of the store.")


@app.command()
def check(
    fix: Annotated[
        bool, typer.Option("--fix", help="Repair the damage, after a copy of the damaged files.")
    ] = False,
    yes: Annotated[
        bool, typer.Option("--yes", help="Cut off damaged writes without a question.")
    ] = False,
    data: DataOption = None,
    config: ConfigOption = "",
    as_json: JsonOption = False,
) -> None:
    """Check the files of the embedded store. The store must be stopped.

    A repair cuts the append-only file at the first damage. All writes after it are lost. Exits
    with 1 if a file is damaged.
    """
    loaded = read_settings(config, data=data)
    if loaded.config.store.url:
        raise SettingsError(
            "`store check` reads the files of the embedded store, but store.url is set.",
            hint="Check a store of your own with its own tools, such as valkey-check-aof.",
        )
    folder = Path(loaded.config.data_dir) / "store"
    try:
        with stopped_store(folder):
            found = check_files(folder)
            copies: list[Path] | None = None
            if found.damages and not as_json:
                _show(found)
            if fix and found.damages and found.repairable:
                if found.loses_writes and not yes:
                    _confirm(found)
                copies = repair_files(folder, found)
                if again := check_files(folder).damages:
                    raise StoreError(
                        f"{again[0].file} is still damaged after the repair: {again[0].problem}",
                        hint="Repeat the command.",
                    )
    except OSError as error:
        raise StoreError(
            f"The files in {folder} cannot be checked: {error.strerror or error}.",
            hint="Run the command as the user that runs the server.",
        ) from error
    _report(found, copies, as_json=as_json)
    if found.damages and copies is None:
        raise typer.Exit(ExitCode.FAILED)


def _confirm(found: StoreCheck) -> None:
    if not sys.stdin.isatty():
        raise InvalidInputError(
            f"The repair would cut off {found.cut_bytes:,} bytes of writes. Nothing was changed.",
            hint="Pass --yes to accept this loss.",
        )
    question = f"Cut off {found.cut_bytes:,} bytes? Writes after the damage are lost."
    if not typer.confirm(question, err=True):
        raise typer.Abort


def _show(found: StoreCheck) -> None:
    """Print each damage, and its consequence."""
    emit_table(
        ["FILE", "SIZE", "FIRST BAD BYTE", "PROBLEM"],
        [[each.file, each.size_bytes, each.offset, each.problem] for each in found.damages],
        empty="",
        numbers=("SIZE", "FIRST BAD BYTE"),
        whole=("FILE",),
    )
    for each in found.damages:
        console.print(Text(_consequence(found, each.file)))


def _consequence(found: StoreCheck, file: str) -> str:
    if not found.repairable:
        return f"This damage cannot be repaired. {RESTORE}"
    if file == MANIFEST:
        return "A repair rebuilds the manifest from the files in the directory. No write is lost."
    if not found.loses_writes:
        return (
            f"A repair cuts {found.cut_bytes:,} bytes: the unfinished last write. The server does"
            " the same at its next start."
        )
    later = f" {', '.join(found.removed)} after it included." if found.removed else ""
    return f"A repair cuts {found.cut_bytes:,} bytes. Writes after this point are lost.{later}"


def _report(found: StoreCheck, copies: list[Path] | None, *, as_json: bool) -> None:
    if as_json:
        emit_json(
            {
                "folder": found.folder,
                "files": found.files,
                "damages": found.damages,
                "removed": found.removed,
                "repairable": found.repairable,
                "repaired": copies is not None,
                "copies": [str(each) for each in copies or ()],
            }
        )
    elif copies is not None:
        console.print(Text("Repaired. The files as they were:"))
        for copy in copies:
            console.print(Text(f"  {copy}"))
    elif found.damages:
        if found.repairable:
            console.print(Text("Repair it with `waystation store check --fix`.", style="dim"))
    elif found.files:
        console.print(Text(f"No damage in {len(found.files)} files of {found.folder}."))
    else:
        console.print(Text(f"The store in {found.folder} has no data yet."))


@app.command("accept-loss")
def accept(
    lost: Annotated[
        str,
        typer.Option("--lost", help="Id of the lost data set; default: that of the catalogue."),
    ] = "",
    data: DataOption = None,
    store: StoreOption = None,
    config: ConfigOption = "",
    as_json: JsonOption = False,
) -> None:
    """Accept that the store lost its data. It gets a new data set, and nodes continue."""
    loaded = read_settings(config, data=data, store_url=store)
    old, new, changed = asyncio.run(accept_loss(loaded.config, lost=lost))
    if as_json:
        emit_json({"lost": old if changed else None, "dataset": new})
    elif changed:
        console.print(Text(f"Data set {old} is given up. The store has data set {new} now."))
        console.print(Text("Running nodes continue with it within seconds.", style="dim"))
    else:
        console.print(Text(f"The store has data set {new}; there is no loss to accept."))
