"""An app whose steps kill the process, or hang in it."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from waystation import App, Context

app = App()
_folder = Path(os.environ.get("DANGEROUS_FOLDER", "."))


def note(text: str) -> None:
    with (_folder / "notes").open("a") as file:
        file.write(f"{text}\n")


@app.step("poison")
async def poison(ctx: Context) -> None:
    note(f"poison {ctx.transaction.id}")
    os._exit(9)


@app.step("harmless")
async def harmless(ctx: Context, number: int) -> int:
    note(f"harmless {number}")
    return number


@app.step("blocks", timeout="1s")
async def blocks(ctx: Context) -> str:
    """Blocks the event loop until a file is there; the second time it does not."""
    note(f"blocks {os.getpid()}")
    while not (_folder / "go").exists():
        time.sleep(0.01)  # Not asyncio.sleep: that is the point.
    return "unblocked"


@app.step("thread")
def thread(ctx: Any) -> str:
    """Waits in a thread until a file is there."""
    note(f"thread {os.getpid()}")
    while not (_folder / "go").exists():
        time.sleep(0.01)
    return str(os.getpid())


for name in ("poison", "harmless", "blocks", "thread"):
    app.pipeline(name, [name])
