"""`waystation demo`: shows on this machine what the product promises, crashes included."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from waystation.cli.options import JsonOption
from waystation.cli.output import console, emit_json


def demo(as_json: JsonOption = False) -> None:
    """Run the main job to its end on a station of its own, with crashes, and check the result."""
    from waystation.demo import run_demo  # noqa: PLC0415 (brings the client's libraries along)

    if as_json:
        emit_json({"checks": run_demo(Console(quiet=True))})
        return
    run_demo(console)
    console.print(
        Text.assemble(
            ("Next: ", "dim"),
            "waystation dev",
            (" runs a station here; ", "dim"),
            "waystation --help",
            (" shows the rest.", "dim"),
        )
    )
