"""`waystation demo`: shows on this machine what the product promises, crashes included."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from waystation.cli.checkout import require_checkout
from waystation.cli.options import JsonOption
from waystation.cli.output import console, emit_json


def demo(
    keep: Annotated[
        Path, typer.Option("--keep", help="Where the lake and the report stay.", metavar="FOLDER")
    ] = Path("waystation-demo"),
    as_json: JsonOption = False,
) -> None:
    """Run the main job to its end on a station of its own, with crashes, and check the result."""
    require_checkout("examples/demo", "The demo is")
    from demo import run_demo  # noqa: PLC0415 (the checkout may be missing)

    keep = keep.absolute()
    if as_json:
        done = run_demo(Console(quiet=True), keep)
        emit_json({"checks": done.checks, "kept": done.kept})
        return
    done = run_demo(console, keep)
    for what, where in done.kept.items():
        console.print(Text.assemble((f"{what:>6}  ", "dim"), where), soft_wrap=True)
    console.print(
        Text.assemble(
            ("Next: ", "dim"),
            "waystation dev",
            (" runs a station here; ", "dim"),
            "waystation --help",
            (" shows the rest.", "dim"),
        )
    )
