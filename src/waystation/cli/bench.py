"""`waystation bench`: measures this machine, and says whether the promises about speed hold."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from waystation.cli.checkout import require_checkout
from waystation.cli.options import JsonOption
from waystation.cli.output import console, emit_json, emit_table, problems
from waystation.errors import ExitCode

if TYPE_CHECKING:
    from waystation_bench.benchmark import Benchmark
    from waystation_bench.report import Bar, Report


def bench(
    name: Annotated[str, typer.Argument(help="Which one; without a name they are listed.")] = "",
    quick: Annotated[
        bool,
        typer.Option("--quick", help="Rougher: within 45 seconds, `transactions` in minutes."),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Measure us, our peers and the limit in one run. Exit code 1 when a bar does not hold."""
    # Import inside the function, because benchmarks load the servers' libraries.
    require_checkout("bench/waystation_bench", "Benchmarks are")
    from waystation_bench.registry import BENCHMARKS  # noqa: PLC0415

    if not name:
        _list(list(BENCHMARKS.values()), as_json=as_json)
        return
    if name not in BENCHMARKS:
        known = ", ".join(sorted(BENCHMARKS))
        raise typer.BadParameter(f"There is no benchmark {name!r}; there is: {known}.")
    report = _run(BENCHMARKS[name], quick=quick, silent=as_json)
    if as_json:
        emit_json(report)
    else:
        _show(report, BENCHMARKS[name])
    if not report.holds:
        raise typer.Exit(ExitCode.FAILED)


def _list(benchmarks: list[Benchmark], *, as_json: bool) -> None:
    rows = [(each.name, each.asks) for each in benchmarks]
    if as_json:
        emit_json([{"name": name, "asks": asks} for name, asks in rows])
    else:
        emit_table(("benchmark", "what it asks"), rows, empty="")


def _run(benchmark: Benchmark, *, quick: bool, silent: bool) -> Report:
    from waystation_bench.runner import run_benchmark  # noqa: PLC0415

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    # On standard error, so that the tables alone can be redirected.
    with Progress(*columns, console=problems, transient=True, disable=silent) as bars:
        task = bars.add_task(benchmark.name, total=None)

        def show(done: int, total: int, text: str) -> None:
            bars.update(task, completed=done, total=total, description=text)

        return run_benchmark(benchmark, quick=quick, progress=show)


def _show(report: Report, benchmark: Benchmark) -> None:
    rows = Table(box=None, header_style="bold", pad_edge=False)
    rows.add_column("row", no_wrap=True)
    for column in ("per second", "CPU µs", "store CPU µs"):
        rows.add_column(column, justify="right", no_wrap=True)
    rows.add_column("")
    for row in report.rows:
        figures = " ".join(f"{name}={value:.1f}" for name, value in row.figures.items())
        rows.add_row(
            row.name,
            f"{row.rate:,.0f}",
            f"{row.process} {row.cpu_us:.1f}",
            f"{row.store_cpu_us:.1f}",
            figures,
        )
    console.print(rows)
    bars = Table(box=None, header_style="bold", pad_edge=False)
    for column in ("", "bar", "value", "promised", "meaning"):
        bars.add_column(column, justify="right" if column in ("value", "promised") else "left")
    for bar, promise in zip(report.bars, benchmark.promises, strict=True):
        sign = "≥" if promise.at == "least" else "≤"
        bars.add_row(_mark(bar), bar.name, _value(bar), f"{sign} {bar.bar:g}", promise.meaning)
    console.print()
    console.print(bars)
    for note in report.notes:
        console.print(Text(note, style="yellow"))
    console.print(Text(f"{report.seconds:.0f} s on {report.settings['cores']} cores", style="dim"))


def _mark(bar: Bar) -> Text:
    return Text("✓", style="green") if bar.holds else Text("✗", style="bold red")


def _value(bar: Bar) -> str:
    return "missing" if bar.value is None else f"{bar.value:g}"
