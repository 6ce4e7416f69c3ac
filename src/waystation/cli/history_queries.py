"""`waystation history sql` and `waystation history shell`: queries of the lake."""

from __future__ import annotations

import code
import codecs
import csv
import os
import sys
from collections.abc import Generator, Iterable
from contextlib import closing
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated, Any

import typer

from waystation.cli import history_forget  # noqa: F401 (adds its commands to the same app)
from waystation.cli.history import (
    LakeOption,
    MasterOption,
    MemoryOption,
    ServerOption,
    UiOption,
    app,
)
from waystation.cli.history_session import check_lake, find_target, session
from waystation.cli.job_bar import Tell, job_bar
from waystation.cli.options import (
    ConfigOption,
    DataOption,
    JsonOption,
    KeyOption,
    StoreOption,
)
from waystation.cli.output import console, emit_json, emit_table, one_line, printable, problems
from waystation.config import Config
from waystation.errors import ExitCode

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from waystation.history.query_protocol import QueryProgress, QueryStarted, ResultFormat

_EXAMPLES = """\
  spark.sql("select topic, count(*) from waystation.messages group by 1").show()
  spark.read.format("waystation").option("topic", "*").load().show()
"""


@app.command()
def sql(
    query: Annotated[
        str, typer.Argument(help="Query in Spark SQL; the tables are waystation.<name>.")
    ] = "",
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV.")] = False,
    warm: Annotated[
        bool | None,
        typer.Option(
            "--warm/--no-warm",
            help="Keep Spark in a process for the next query; default with a local master.",
        ),
    ] = None,
    stop: Annotated[
        bool, typer.Option("--stop", help="End the process that keeps Spark, and run no query.")
    ] = False,
    lake: LakeOption = None,
    master: MasterOption = None,
    memory: MemoryOption = None,
    data: DataOption = None,
    url: ServerOption = "",
    key: KeyOption = "",
    config: ConfigOption = "",
    as_json: JsonOption = False,
) -> None:
    """Query the lake. It has the rows that were ingested, and the command needs no store."""
    if bool(query) == stop:
        raise typer.BadParameter("Give either a query or --stop.")
    target = find_target(
        config,
        url=url,
        key=key,
        data=data,
        lake=lake,
        history_master=master,
        history_memory=memory,
    )
    if stop:
        _stop(target.settings, as_json=as_json)
        return
    spark_master = target.settings.history.master
    if warm is None:
        # On a cluster, an idle session would keep executors that other applications need.
        warm = spark_master.startswith("local")
    if spark_master.startswith("sc://"):
        warm = False  # A session of Spark Connect starts no Java that could be kept.
    form: ResultFormat = "json" if as_json else "csv" if as_csv else "table"
    table: list[bytes] = []
    with (
        job_bar(hidden=form != "table") as tell,
        closing(_result(target.settings, query, form, tell, warm=warm)) as pieces,
    ):
        if form == "table":
            table.extend(pieces)
        else:
            _write(pieces, form)
    # Print the table after the bar has ended, because the bar would be drawn into it.
    if form == "table":
        _show_table(table)


def _result(
    config: Config, query: str, form: ResultFormat, tell: Tell, *, warm: bool
) -> Generator[bytes]:
    """Yield the result of a query, from the query process if that is wanted and possible."""
    if warm:
        from waystation.history.query_client import NoQueryProcessError  # noqa: PLC0415 (as below)

        try:
            yield from _warm_result(config, query, form, tell)
        except NoQueryProcessError as error:
            problems.print(f"No process keeps Spark: {error}", style="dim", soft_wrap=True)
        else:
            return
    # Import here, because Spark takes seconds to import and other commands do not need it.
    from waystation.history.lake.views import run_query  # noqa: PLC0415
    from waystation.history.progress import task_watch  # noqa: PLC0415
    from waystation.history.query_results import encode_result  # noqa: PLC0415

    check_lake(config)
    with (
        session(config, quiet=form != "table") as (spark, lake),
        task_watch(spark, "sql", lambda completed, known: tell(completed, known, "tasks")),
    ):
        result = run_query(spark, lake, query)
        yield from encode_result(result.columns, result.rows(), form)


def _warm_result(config: Config, query: str, form: ResultFormat, tell: Tell) -> Generator[bytes]:
    from waystation.history.query_client import QueryProcess  # noqa: PLC0415 (only queries need it)

    is_new = False

    def before_start() -> None:
        nonlocal is_new
        is_new = True
        check_lake(config)

    def on_started(started: QueryStarted) -> None:
        tell(0, 0, "query")
        if is_new and form == "table" and problems.is_terminal:
            problems.print(
                f"Spark stays ready for {_duration(config.history.sql_idle_seconds)};"
                " `waystation history sql --stop` ends it.",
                style="dim",
                soft_wrap=True,
            )
        if started.ui and form == "table":
            problems.print(f"Spark UI: {started.ui}", style="dim", soft_wrap=True)

    def on_progress(progress: QueryProgress) -> None:
        tell(progress.completed, progress.known, "tasks")

    yield from QueryProcess(config).run(
        query,
        form,
        before_start=before_start,
        on_started=on_started,
        on_progress=on_progress,
    )


def _stop(config: Config, *, as_json: bool) -> None:
    from waystation.history.query_client import stop_processes  # noqa: PLC0415 (as above)

    stopped = stop_processes(config)
    if as_json:
        emit_json({"stopped": stopped})
    elif stopped:
        console.print("Spark has ended; the next query starts it again.")
    else:
        console.print("No process keeps Spark.")


def _write(pieces: Iterable[bytes], form: ResultFormat) -> None:
    """Write a result to standard output. Escape control characters for a terminal."""
    sys.stdout.flush()
    if not sys.stdout.isatty():
        for piece in pieces:
            sys.stdout.buffer.write(piece)
            sys.stdout.flush()
    elif form == "json":
        for text in codecs.iterdecode(pieces, "utf-8", "replace"):
            sys.stdout.write(printable(text))
            sys.stdout.flush()
    else:
        writer = csv.writer(sys.stdout)
        for cells in csv.reader(_split_lines(codecs.iterdecode(pieces, "utf-8", "replace"))):
            writer.writerow([one_line(cell) for cell in cells])


def _split_lines(texts: Iterable[str]) -> Generator[str]:
    """Yield the lines of a text with their ends."""
    rest = ""
    for text in texts:
        *lines, rest = (rest + text).split("\n")
        for line in lines:
            yield f"{line}\n"
    if rest:
        yield rest


def _show_table(pieces: list[bytes]) -> None:
    from waystation.history.query_results import TABLE_ROWS_MAX, decode_table  # noqa: PLC0415

    columns, rows, has_more = decode_table(pieces)
    emit_table(columns, rows, empty="No rows.")
    if has_more:
        console.print(f"The first {TABLE_ROWS_MAX:,} rows; --json and --csv have all.", style="dim")


def _duration(seconds: float) -> str:
    minutes = round(seconds / 60)
    return f"{minutes} minutes" if minutes > 1 else f"{seconds:.0f} s"


@app.command()
def shell(
    lake: LakeOption = None,
    master: MasterOption = None,
    memory: MemoryOption = None,
    ui: UiOption = None,
    store: StoreOption = None,
    data: DataOption = None,
    url: ServerOption = "",
    key: KeyOption = "",
    config: ConfigOption = "",
) -> None:
    """Open a Python shell with a Spark session, the views of the lake and the sources.

    Python code on standard input is executed instead.
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
    check_lake(target.settings)
    _name_store(target.settings)
    is_terminal = sys.stdin.isatty()
    with session(target.settings, ui=ui, quiet=not is_terminal) as (spark, opened):
        from waystation.history.lake.views import attach  # noqa: PLC0415 (Spark takes seconds)

        attach(spark, lake=opened.root)
        names = {"__name__": "__main__", "__doc__": None, "spark": spark}
        if is_terminal:
            _interact(names, _banner(spark, opened.root))
        elif not _execute(sys.stdin.read(), names):
            raise typer.Exit(ExitCode.FAILED)


def _name_store(config: Config) -> None:
    """Let the source find the store without an option, also in the tasks of a local session.

    An embedded store is found while a server runs it.
    """
    os.environ["WAYSTATION_DATA"] = str(config.data_dir)
    if config.store.url:
        os.environ["WAYSTATION_STORE_URL"] = config.store.url


def _banner(spark: SparkSession, lake: str) -> str:
    views = [row["tableName"] for row in spark.sql("show tables in waystation").collect()]
    own = ", ".join(sorted(name for name in views if not name.endswith("_all")))
    head = f"Spark {spark.version}, `spark` is the session. The lake {lake} has the views\n"
    return printable(f"{head}{_wrapped(own)}\nof the database `waystation`. Examples:\n{_EXAMPLES}")


def _wrapped(text: str) -> str:
    import textwrap  # noqa: PLC0415

    return textwrap.fill(text, width=96, initial_indent="  ", subsequent_indent="  ")


def _interact(names: dict[str, Any], banner: str) -> None:
    """Run IPython if it is installed, else the shell of Python, until the user ends it."""
    if find_spec("IPython") is not None:
        sys.stdout.write(banner)
        import_module("IPython").start_ipython(argv=[], user_ns=names, display_banner=False)
        return
    import readline  # noqa: PLC0415
    import rlcompleter  # noqa: PLC0415

    readline.set_completer(rlcompleter.Completer(names).complete)
    readline.parse_and_bind("tab: complete")
    code.interact(banner=banner, local=names, exitmsg="")


def _execute(source: str, names: dict[str, Any]) -> bool:
    """Execute code as `python -` does. Print the traceback of an error and return False."""
    interpreter = _Interpreter(names)
    interpreter.runsource(source, "<stdin>", "exec")
    return not interpreter.has_failed


class _Interpreter(code.InteractiveInterpreter):
    """An interpreter that remembers whether the code has failed."""

    has_failed = False

    def showsyntaxerror(self, *arguments: Any, **named: Any) -> None:
        """Print a syntax error."""
        self.has_failed = True
        super().showsyntaxerror(*arguments, **named)

    def showtraceback(self) -> None:
        """Print the traceback of an exception."""
        self.has_failed = True
        super().showtraceback()
