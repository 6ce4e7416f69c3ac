"""`waystation topic produce`: one message from the command line, or many from standard input.

Lines are produced in batches as they come. A line that the topic refuses does not hold up the
others of its batch; after that batch the command ends and names it.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer
from rich.text import Text

from waystation.cli.lines import Line, input_bytes, json_problem, progress_bar, read_lines
from waystation.cli.options import JsonOption, KeyOption, TopicArgument, UrlOption
from waystation.cli.output import console, emit_json, problems
from waystation.cli.station import open_station
from waystation.errors import ExitCode, InvalidInputError, WaystationError

if TYPE_CHECKING:
    from waystation.client import NewMessage, Waystation
    from waystation.client.topics import Results

_QUOTE_IT = "Quote it: '{\"total\": 7}', or send it as it is with --text."


def produce(
    topic: TopicArgument,
    content: Annotated[str, typer.Argument(help="JSON; - reads it from standard input.")] = "",
    many: Annotated[
        bool, typer.Option("--stdin", help="Produce each line of standard input, which is JSON.")
    ] = False,
    text: Annotated[bool, typer.Option("--text", help="The content is text, not JSON.")] = False,
    group: Annotated[
        str | None, typer.Option("--group", help="Group; messages of one keep their order.")
    ] = None,
    group_by: Annotated[
        str, typer.Option("--group-by", help="With --stdin: field of each line with its group.")
    ] = "",
    message_id: Annotated[
        str, typer.Option("--id", help="Message id. With --stdin: line 7 is ID-7.")
    ] = "",
    header: Annotated[
        list[str] | None, typer.Option("--header", help="As x-name=value; may be repeated.")
    ] = None,
    url: UrlOption = "",
    key: KeyOption = "",
    as_json: JsonOption = False,
) -> None:
    """Produce one message, or each line of standard input."""
    if many == bool(content):
        raise InvalidInputError(
            "Nothing to produce." if not many else "Content and --stdin exclude each other.",
            hint="Give the content as JSON, or pipe JSON lines in with --stdin.",
        )
    if group_by and (not many or group is not None):
        raise InvalidInputError("--group-by is for --stdin, and excludes --group.")
    headers = [_header(each) for each in header or ()]
    with open_station(url, key) as station:
        if many:
            feed = Feed(
                station, topic, prefix=message_id, group=group, group_by=group_by, headers=headers
            )
            _produce_lines(feed, as_json=as_json)
            return
        given = sys.stdin.buffer.read() if content == "-" else content.encode()
        receipt = station.topics.produce(
            topic,
            _text(given) if text else _json(given),
            id=message_id,
            group=group,
            headers=headers,
        )
    if as_json:
        emit_json(receipt)
        return
    verb = "known already," if receipt.duplicate else "produced"
    place = f"storage topic {receipt.storage}, partition {receipt.partition}"
    console.print(Text(f"{verb} {receipt.id}: {place}, offset {receipt.offset}"), soft_wrap=True)


def _text(given: bytes) -> str:
    try:
        return given.decode()
    except UnicodeDecodeError as error:
        raise InvalidInputError(f"The content is not UTF-8: {error}.") from error


def _json(given: bytes) -> msgspec.Raw:
    if problem := json_problem(given):
        raise InvalidInputError(f"The content is not JSON: {problem}.", hint=_QUOTE_IT)
    return msgspec.Raw(given)


class Feed:
    """Produces lines in order, and counts."""

    def __init__(
        self,
        station: Waystation,
        topic: str,
        *,
        prefix: str,
        group: str | None,
        group_by: str,
        headers: list[tuple[str, str]],
    ) -> None:
        self._topics = station.topics
        self.topic = topic
        self._prefix = prefix
        self._group = group
        self._group_by = group_by
        self._headers = headers
        self.produced = 0
        self.duplicates = 0

    def produce(self, lines: list[Line]) -> None:
        """Produces a batch; an error tells the line and how to go on."""
        messages: list[NewMessage] = []
        bad: InvalidInputError | None = None
        for line in lines:
            try:
                messages.append(self._message(line))
            except InvalidInputError as error:
                bad = error
                break
        results = self._topics.produce_many(self.topic, messages)
        refused = self._count(results)
        if refused:
            line, problem = lines[refused[0]], results[refused[0]]
            assert isinstance(problem, WaystationError)
            problem.message = f"Line {line.number} was not produced: {problem.message}"
            problem.hint = self._advice(lines[len(messages) - 1].number + 1, len(refused))
            raise problem
        if bad is not None:
            bad.hint = self._advice(lines[len(messages)].number)
            raise bad

    def _count(self, results: Results) -> list[int]:
        """Counts what was produced; returns where it was not."""
        refused = []
        for index, result in enumerate(results):
            if isinstance(result, WaystationError):
                refused.append(index)
            else:
                self.produced += 1
                self.duplicates += result.duplicate
        return refused

    def _message(self, line: Line) -> NewMessage:
        from waystation.client import NewMessage  # noqa: PLC0415 (help must not wait for HTTP)

        if problem := json_problem(line.text):
            raise InvalidInputError(f"Line {line.number} is not JSON: {problem}.")
        return NewMessage(
            msgspec.Raw(line.text),
            id=f"{self._prefix}-{line.number}" if self._prefix else "",
            group=self._grouped(line) if self._group_by else self._group,
            headers=self._headers,
        )

    def _grouped(self, line: Line) -> str:
        value: Any = msgspec.json.decode(line.text)
        found = value.get(self._group_by) if isinstance(value, dict) else None
        if not isinstance(found, str | int) or isinstance(found, bool):
            raise InvalidInputError(f"Line {line.number} has no {self._group_by} to group by.")
        return str(found)

    def _advice(self, following: int, refused: int = 0) -> str:
        if self._prefix:
            return "With the same --id it can run again; a topic with dedup_seconds doubles none."
        if not self.produced:
            return ""  # Then the error alone says what to do.
        but = f", but {refused:,}" if refused else ""
        return f"The lines before {following} are produced{but}; go on with tail -n +{following}."


def _produce_lines(feed: Feed, *, as_json: bool) -> None:
    with progress_bar(hidden=as_json) as progress:
        task = progress.add_task(_messages(0), total=input_bytes())
        try:
            for lines in read_lines(sys.stdin.fileno()):
                feed.produce(lines)
                told = _messages(feed.produced)
                progress.update(task, completed=lines[-1].ends_at, description=told)
        except KeyboardInterrupt:
            progress.stop()
            problems.print(Text(f"stopped after {_messages(feed.produced)}", style="yellow"))
            raise typer.Exit(ExitCode.INTERRUPTED) from None
    if as_json:
        emit_json({"topic": feed.topic, "produced": feed.produced, "duplicates": feed.duplicates})
        return
    known = f", {feed.duplicates:,} of them known already" if feed.duplicates else ""
    console.print(Text(f"produced {_messages(feed.produced)}{known}"))


def _messages(count: int) -> str:
    return f"{count:,} message{'' if count == 1 else 's'}"


def _header(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise InvalidInputError(f"{text!r} is no header.", hint="Give it as x-name=value.")
    return name.strip(), value
