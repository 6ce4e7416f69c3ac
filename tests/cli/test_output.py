"""Everything that commands print for people is safe for a terminal."""

from __future__ import annotations

import csv
import io
import json
import sys

import msgspec
import pytest
from rich.text import Text

from waystation.cli import channel_tail, output, tx_shown
from waystation.cli.history_queries import _write
from waystation.cli.output import (
    SafeConsole,
    emit_error,
    emit_json,
    emit_table,
    one_line,
    printable,
)
from waystation.client.messages import Received
from waystation.client.transactions import Journal, JournalLine, JournalStep
from waystation.errors import WaystationError
from waystation.history.query_results import encode_result

#: An escape sequence, its C1 form, marks that turn a text around, a separator, half a smiley.
DANGEROUS = "a\x1b[31mb\x9b2Jc\u202ed\u2066e\u200ff\u2028g\ud83dh\x07\x7f\r"
ESCAPED = r"a\u001b[31mb\u009b2Jc\u202ed\u2066e\u200ff\u2028g\ud83dh\u0007\u007f\u000d"


def test_printable_text_has_no_characters_that_a_terminal_obeys() -> None:
    assert printable(DANGEROUS) == ESCAPED
    assert printable("zwölf\t🚀\n") == "zwölf\t🚀\n"
    assert one_line("a\nError: b\tc\x1b") == r"a\nError: b\tc\u001b"


class Output(io.StringIO):
    """Standard output that is a terminal, or not."""

    def __init__(self, *, terminal: bool) -> None:
        super().__init__()
        self._terminal = terminal
        self.buffer = io.BytesIO()

    def isatty(self) -> bool:
        return self._terminal


@pytest.mark.parametrize("terminal", [False, True], ids=["pipe", "terminal"])
def test_csv_of_a_query_is_escaped_on_a_terminal_and_exact_in_a_file(
    monkeypatch: pytest.MonkeyPatch, terminal: bool
) -> None:
    out = Output(terminal=terminal)
    monkeypatch.setattr(sys, "stdout", out)
    rows = [(1, "a\x1b[2J\nb"), (None, ["\x9b"])]
    whole = b"".join(encode_result(["id", "note"], rows, "csv"))
    # In pieces that divide line ends and quoted values
    _write([whole[at : at + 3] for at in range(0, len(whole), 3)], "csv")
    if terminal:
        assert out.getvalue() == "id,note\r\n1,a\\u001b[2J\\nb\r\n,['\\x9b']\r\n"
    else:
        text = out.buffer.getvalue().decode()
        assert list(csv.reader(io.StringIO(text, newline="")))[1] == ["1", "a\x1b[2J\nb"]


def test_channel_message_and_journal_stay_on_their_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    file = io.StringIO()
    safe = SafeConsole(file=file, highlight=False, width=300)
    for module in (channel_tail, tx_shown):
        monkeypatch.setattr(module, "console", safe)
    channel_tail._show(Received("m-1", msgspec.Raw(b"{\n}")), as_json=False)
    journal = Journal(
        id="tx-1",
        type="refund",
        state="complete",
        status="success",
        started_ms=0,
        note="",
        switches={},
        cause="no\ntx-2 of refund is complete",
        steps=[
            JournalStep(
                place="1",
                type="pay",
                attempts=1,
                last=[],
                logs=[JournalLine(time_ms=0, level="info", text="paid\n1 info")],
            )
        ],
    )
    tx_shown.show_journal(journal)
    lines = file.getvalue().splitlines()
    assert lines[0] == r"m-1  {\n}"
    assert sum(line.startswith("tx-2") for line in lines) == 0
    assert sum(r"paid\n1 info" in line for line in lines) == 1


@pytest.mark.parametrize("terminal", [False, True], ids=["pipe", "terminal"])
def test_console_escapes_every_text_and_keeps_styles(
    monkeypatch: pytest.MonkeyPatch, terminal: bool
) -> None:
    file = io.StringIO()
    safe = SafeConsole(
        file=file,
        force_terminal=terminal,
        highlight=False,
        width=300,
        color_system="standard" if terminal else None,
    )
    monkeypatch.setattr(output, "console", safe)

    safe.print(Text.assemble((DANGEROUS, "red"), " end"))
    safe.print(DANGEROUS, markup=False)
    emit_table(("label", "state"), [(DANGEROUS + "\nfalse", "live"), ("x", "gone")], empty="")

    text = file.getvalue()
    assert text.count(ESCAPED.partition("g")[0]) == 3
    styles = ("\x1b[31m", "\x1b[0m", "\x1b[1m") if terminal else ()
    for style in styles:
        text = text.replace(style, "")
    assert printable(text) == text
    rows = text.splitlines()[-2:]
    assert rows[0].count(r"\nfalse") == 1, "a value cannot begin a line"
    assert rows[0].index("live") == rows[1].index("gone")


def test_emit_error_escapes_messages(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    error = WaystationError(DANGEROUS[:20], hint=DANGEROUS[:20])
    file = io.StringIO()
    monkeypatch.setattr(output, "problems", SafeConsole(file=file, width=300))

    emit_error(error)
    emit_error(WaystationError("a\x9bb\u202e"), as_json=True)

    assert printable(file.getvalue()) == file.getvalue()
    said = capsys.readouterr().err
    assert printable(said) == said
    assert json.loads(said)["error"] == "a\x9bb\u202e"


def test_emit_json_escapes_for_a_terminal_and_not_for_a_pipe(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for terminal in (False, True):
        raw = io.BytesIO()
        stream = io.TextIOWrapper(raw, encoding="utf-8")
        monkeypatch.setattr(stream, "isatty", lambda terminal=terminal: terminal, raising=False)
        monkeypatch.setattr("sys.stdout", stream)
        emit_json({"label": "a\x9bb\u202e"})
        said = raw.getvalue().decode()
        assert json.loads(said) == {"label": "a\x9bb\u202e"}
        assert (printable(said) == said) is terminal


@pytest.mark.parametrize(
    ("columns", "names"),
    [
        (["id", "n"], ["id", "n"]),
        (["id", "id", "id"], ["id", "id_2", "id_3"]),
        (["id", "id", "id_2"], ["id", "id_3", "id_2"]),
        (["id_2", "id", "id"], ["id_2", "id", "id_3"]),
    ],
)
def test_json_result_with_repeated_column_names_has_all_columns(
    columns: list[str], names: list[str]
) -> None:
    row = tuple(range(len(columns)))
    (line,) = b"".join(encode_result(columns, [row], "json")).splitlines()
    assert json.loads(line) == dict(zip(names, row, strict=True))
