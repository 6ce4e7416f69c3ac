"""`waystation channel publish`: one message from the command line, or many from standard input.

Lines are published in batches as they come: what has arrived is not held back for what has not, so
a pipe that never ends works as well as a file. A line that is not JSON ends the command; what came
before it is published.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from waystation.cli.lines import Line, input_bytes, json_problem, progress_bar, read_lines
from waystation.cli.options import ChannelArgument, JsonOption, KeyOption, UrlOption
from waystation.cli.output import console, emit_json, problems
from waystation.cli.station import open_station
from waystation.errors import ChannelFullError, ExitCode, InvalidInputError, StationUnreachableError

if TYPE_CHECKING:
    from waystation.client import Waystation

_QUOTE_IT = "Quote it: '{\"total\": 7}' or '\"text\"'."


def publish(
    channel: ChannelArgument,
    content: Annotated[str, typer.Argument(help="JSON; - reads it from standard input.")] = "",
    many: Annotated[
        bool, typer.Option("--stdin", help="Publish each line of standard input, which is JSON.")
    ] = False,
    message_id: Annotated[
        str,
        typer.Option(
            "--id",
            help="Message id; the same id is published just once. With --stdin: line 7 is ID-7.",
        ),
    ] = "",
    url: UrlOption = "",
    key: KeyOption = "",
    as_json: JsonOption = False,
) -> None:
    """Publish one message, or each line of standard input."""
    if many == bool(content):
        raise InvalidInputError(
            "Nothing to publish." if not many else "Content and --stdin exclude each other.",
            hint="Give the content as JSON, or pipe JSON lines in with --stdin.",
        )
    with open_station(url, key) as station:
        if many:
            _publish_lines(station, channel, message_id, as_json=as_json)
            return
        text = sys.stdin.read() if content == "-" else content
        if problem := json_problem(text.encode()):
            raise InvalidInputError(f"The content is not JSON: {problem}.", hint=_QUOTE_IT)
        published = station.channels.publish(channel, text.encode(), message_id=message_id)
    if as_json:
        emit_json({"channel": channel, "id": published})
    else:
        console.print(Text(f"published {published}"))


class Feed:
    """Publishes lines in order, and counts."""

    def __init__(self, station: Waystation, channel: str, prefix: str) -> None:
        self._channels = station.channels
        self._channel = channel
        self._prefix = prefix
        self.published = 0
        self.duplicates = 0

    def publish(self, lines: list[Line]) -> None:
        """Publishes a batch; an error tells the line and how to go on."""
        good = _until_bad(lines)
        pairs = [(self._prefix and f"{self._prefix}-{line.number}", line.text) for line in good]
        try:
            outcomes = [each.outcome for each in self._channels.publish_many(self._channel, pairs)]
        except ChannelFullError:
            outcomes = ["full" for _ in good]
        except StationUnreachableError as error:
            error.hint = self._advice(lines[0])
            raise
        self.published += len(outcomes) - outcomes.count("full")
        self.duplicates += outcomes.count("duplicate")
        if "full" in outcomes:
            refused = good[outcomes.index("full")]
            told = f"The channel is full; line {refused.number} found no room."
            raise ChannelFullError(told, hint=self._advice(refused))
        if len(good) < len(lines):
            bad = lines[len(good)]
            told = f"Line {bad.number} is not JSON: {json_problem(bad.text)}."
            raise InvalidInputError(told, hint=self._advice(bad))

    def _advice(self, line: Line) -> str:
        if self._prefix:
            return "Run it again with the same --id: what is published will not be doubled."
        if not self.published:
            return "Nothing before it was published."
        return f"The lines before {line.number} are published; go on with tail -n +{line.number}."


def _publish_lines(station: Waystation, channel: str, prefix: str, *, as_json: bool) -> None:
    feed = Feed(station, channel, prefix)
    with progress_bar(hidden=as_json) as progress:
        task = progress.add_task(_messages(0), total=input_bytes())
        try:
            for lines in read_lines(sys.stdin.fileno()):
                feed.publish(lines)
                told = _messages(feed.published)
                progress.update(task, completed=lines[-1].ends_at, description=told)
        except KeyboardInterrupt:
            progress.stop()
            problems.print(Text(f"stopped after {_messages(feed.published)}", style="yellow"))
            raise typer.Exit(ExitCode.INTERRUPTED) from None
    if as_json:
        counts = {"published": feed.published, "duplicates": feed.duplicates}
        emit_json({"channel": channel, **counts})
        return
    known = f", {feed.duplicates:,} of them known already" if feed.duplicates else ""
    console.print(Text(f"published {_messages(feed.published)}{known}"))


def _messages(count: int) -> str:
    return f"{count:,} message{'' if count == 1 else 's'}"


def _until_bad(lines: list[Line]) -> list[Line]:
    """The lines before the first that is not JSON."""
    for place, line in enumerate(lines):
        if json_problem(line.text):
            return lines[:place]
    return lines
