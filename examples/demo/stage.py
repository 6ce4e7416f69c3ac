"""The stage of the demo: acts, what is said in them, and checks that must hold."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.padding import Padding
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table
from rich.text import Text

from demo.kept import make_room
from demo.receiver import Receiver
from demo.station import DemoStation
from waystation.errors import WaystationError

#: Most acts take a second or two. One that does not end is told as what it is: something hangs.
ACT_SECONDS_MAX = 180.0


class DemoFailedError(WaystationError):
    """Something that the demo shows did not hold."""

    code = "demo.failed"


class Stage:
    """Prints the story and counts its checks."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._title = ""
        self._progress: Progress | None = None
        self.checks: list[dict[str, object]] = []
        #: What stays when it is over -> where.
        self.kept: dict[str, str] = {}

    def act(self, title: str) -> None:
        """Begins an act."""
        self._end_progress()
        self._title = title
        self._console.print(Text.assemble("\n", ("▸ ", "bold cyan"), (title, "bold")))

    def say(self, text: str) -> None:
        """Tells what happens."""
        self._console.print(Text(f"  {text}", style="dim"))

    def check(self, what: str, found: object, wanted: object) -> None:
        """Shows a result, and fails the demo if it is not what was promised."""
        self._end_progress()
        holds = found == wanted
        self.checks.append({"check": what, "found": found, "wanted": wanted, "holds": holds})
        mark = ("✓", "bold green") if holds else ("✗", "bold red")
        shown = "" if found is True else f"  {found:,}" if isinstance(found, int) else f"  {found}"
        self._console.print(Text.assemble("  ", mark, f" {what}{shown}"))
        if not holds:
            raise DemoFailedError(f"{what}: {found}, but {wanted} was promised.")

    def table(
        self, question: str, columns: Sequence[str], rows: Sequence[Sequence[object]]
    ) -> None:
        """Shows a question to the lake, and its answer."""
        for line in question.splitlines():
            self._console.print(Text(f"  {line}", style="cyan"), soft_wrap=True)
        shown = Table(*columns, box=SIMPLE_HEAD, header_style="dim")
        for row in rows:
            shown.add_row(*(f"{each:,}" if isinstance(each, int) else str(each) for each in row))
        self._console.print(Padding(shown, (0, 1)))

    def progress(self, what: str, total: int) -> Callable[[], None]:
        """Shows a bar; the returned function moves it on by one."""
        self._progress = Progress(
            TextColumn("  {task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            console=self._console,
            transient=False,
        )
        task = self._progress.add_task(what, total=total)
        self._progress.start()
        progress = self._progress
        return lambda: progress.advance(task)

    async def perform(
        self, act: Act, station: DemoStation, *, seconds_max: float = ACT_SECONDS_MAX
    ) -> None:
        """Has an act play; DemoFailedError if it does not come to its end."""
        limit = asyncio.timeout(seconds_max)
        try:
            async with limit:
                await act(self, station)
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise DemoFailedError(
                f"This was not over after {seconds_max:g} s: {self._title}."
            ) from error
        finally:
            self._end_progress()

    def _end_progress(self) -> None:
        if self._progress is not None:
            self._progress.stop()
            self._progress = None


Act = Callable[[Stage, DemoStation], Awaitable[None]]


def run_demo(console: Console, folder: Path) -> Stage:
    """Runs all acts on a station of their own; DemoFailedError if one of the checks does not hold.

    The lake and the report stay in the folder, in the place of those of an earlier demo.
    """
    # Here, since acts import the stage.
    from demo import (  # noqa: PLC0415
        archive,
        channels,
        history,
        pools,
        subscriptions,
        topics,
        transactions,
        webhooks,
    )

    acts: list[Act] = [
        channels.orders_through_a_crash,
        channels.unread_after_a_crash,
        channels.a_poll_wakes,
        webhooks.payments_to_a_webhook,
        topics.a_topic_grows_under_load,
        subscriptions.events_to_a_flaky_endpoint,
        pools.a_pool_loses_a_worker,
        transactions.every_kind_of_transaction,
        archive.sleepers_in_the_archive,
    ]
    make_room(folder)
    stage = Stage(console)
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="waystation-demo-", ignore_cleanup_errors=True) as data:
        stage.act("a station starts: HTTP door, embedded Valkey, every reply after its fsync")
        with Receiver() as receiver, DemoStation(Path(data), receiver) as station:
            history.record_channels_and_pools(station)
            stage.say(
                f"{station.url}  Valkey {station.facts['store_version']}  "
                f"durability {station.facts['durability']}  ({time.monotonic() - begun:.1f} s)"
            )
            for act in acts:
                asyncio.run(stage.perform(act, station))
            history.everything_in_the_lake(stage, station, folder)
    seconds = time.monotonic() - begun
    console.print(Text(f"\n{len(stage.checks)} checks held in {seconds:.0f} s.", style="bold"))
    return stage
