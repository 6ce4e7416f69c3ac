"""The packed state, its journal, the head and the entries of the record log."""

from __future__ import annotations

import msgspec
import pytest

from waystation.transactions import head, log_entry
from waystation.transactions.journal import (
    ATTEMPTS_KEPT,
    LINE_BYTES_MAX,
    LINES_KEPT,
    NOTE_BYTES_MAX,
    TRACE_BYTES_MAX,
    cut,
    journal_of,
    note_attempt,
)
from waystation.transactions.record import (
    FORMAT,
    Attempt,
    Fan,
    FanChild,
    Frame,
    LogLine,
    TransactionState,
    decode,
    encode,
)
from waystation.transactions.states import State, Status

JSON = b'{"big": 12345678901234567890, "n": 1.0, "list": []}'


def full_state() -> TransactionState:
    return TransactionState(
        type="refund",
        external_id="r-17",
        metadata=b'{"lang":"en"}',
        data=JSON,
        started_ms=1,
        deadline_ms=2,
        cause="tx-0",
        traceparent="00-1",
        frames=[
            Frame("refund", "v1", "workers", 1, JSON),
            Frame("pay", "v2", "bank", 0, b"1", 3, "2"),
        ],
        output=b"[]",
        note="fine",
        fan=Fan(1, "wait_all", [FanChild("child", "v3", "workers", JSON)]),
    )


def attempt(**more: object) -> Attempt:
    plain = Attempt(0, 1, "success", 10, 20, "n1")
    return msgspec.structs.replace(plain, **more)


# -- Packed state ----------------------------------------------------------------------------


def test_a_state_comes_back_as_it_was_and_json_of_users_byte_for_byte() -> None:
    state = full_state()
    note_attempt(state, "2.1", "pay/card", attempt(), [LogLine(1, "info", "begun")])
    found = decode(encode(state))
    assert found == state
    assert found.data == JSON


def test_a_small_state_is_small() -> None:
    state = TransactionState(type="refund", data=b"x" * 300)
    state.frames.append(Frame("refund", "0123456789abcdef", "workers", 0, b""))
    assert len(encode(state)) < 300 + 80


@pytest.mark.parametrize("junk", [b"", b"\xc0", b"\x90", b"junk", b"\x92\x01\x02"])
def test_what_is_no_state_is_told_as_such(junk: bytes) -> None:
    with pytest.raises(ValueError, match="not the state of a transaction"):
        decode(junk)


def test_a_state_of_a_newer_release_is_refused_by_its_number() -> None:
    newer = msgspec.msgpack.decode(encode(full_state()))
    newer[0] = FORMAT + 1
    for changed in (newer, [FORMAT + 1, {"another": "layout"}]):
        with pytest.raises(ValueError, match=f"format {FORMAT + 1}"):
            decode(msgspec.msgpack.encode(changed))


def test_the_place_of_a_step_is_its_path_from_one() -> None:
    assert Frame("p", "v", "g", 0, b"").place == "1"
    assert Frame("p", "v", "g", 2, b"", parent="2").place == "2.3"


# -- Journal ---------------------------------------------------------------------------------


def test_a_journal_keeps_the_newest_attempts_and_counts_all() -> None:
    state = TransactionState(type="refund")
    for number in range(1, 51):
        kept = note_attempt(state, "1", "pay/card", attempt(begun_ms=number))
        assert kept.number == number
    journal = journal_of(state, "1")
    assert journal is not None
    assert (journal.type, journal.attempts) == ("pay/card", 50)
    assert [each.number for each in journal.last] == list(range(51 - ATTEMPTS_KEPT, 51))
    assert journal_of(state, "2") is None


def test_steps_have_journals_of_their_own() -> None:
    state = TransactionState(type="refund")
    for place in ("1", "2", "1"):
        note_attempt(state, place, f"step/{place}", attempt())
    assert [(each.place, each.attempts) for each in state.journal] == [("1", 2), ("2", 1)]


def test_a_journal_is_bounded_whatever_a_step_says() -> None:
    state = TransactionState(type="refund")
    lines = [LogLine(n, "info", "ü" * 10_000) for n in range(1000)]
    for _ in range(100):
        wordy = attempt(note="ü" * 100_000, trace="ü" * 100_000)
        note_attempt(state, "1", "pay/card", wordy, lines)
    (journal,) = state.journal
    assert len(journal.logs) == LINES_KEPT
    assert [line.ms for line in journal.logs] == list(range(900, 1000))
    assert all(len(line.text.encode()) <= LINE_BYTES_MAX for line in journal.logs)
    bound = ATTEMPTS_KEPT * (NOTE_BYTES_MAX + TRACE_BYTES_MAX) + LINES_KEPT * LINE_BYTES_MAX
    assert len(encode(state)) < bound + 5000
    assert decode(encode(state)) == state


def test_a_text_is_cut_between_letters_and_shows_it() -> None:
    assert cut("short", 5) == "short"
    assert cut("longer", 5) == "lo…"
    assert cut("üüüü", 7) == "üü…"
    assert cut("\ud800", 10) == "?"


# -- Head ------------------------------------------------------------------------------------

LINE = b"17 running 9 3 2 sd workers in refund default - 0 - 1 n1:7 -"


def test_a_head_is_read_word_by_word() -> None:
    found = head.parse(LINE)
    assert (found.since, found.state, found.version, found.epoch) == (17, State.RUNNING, 9, 3)
    assert (found.commits, found.flags, found.group, found.queue) == (2, "sd", "workers", "in")
    assert (found.pipeline, found.owner, found.status) == ("refund", "default", None)
    assert (found.wake, found.switch, found.rescues) == (0, "", 1)
    assert (found.node, found.archive) == ("n1:7", "")
    assert found.suspect
    assert not found.cancelling
    ended = head.parse(LINE.replace(b"default - ", b"default timeout ").replace(b" sd ", b" c "))
    assert ended.status is Status.TIMEOUT
    assert ended.cancelling
    assert not ended.suspect


@pytest.mark.parametrize(
    "line", [b"", LINE + b" more", LINE[:-2], LINE.replace(b"running", b"flying"), b"x" + LINE]
)
def test_what_is_no_head_is_told_as_such(line: bytes) -> None:
    with pytest.raises(ValueError, match="not the head of a transaction"):
        head.parse(line)


# -- Entries of the record log ---------------------------------------------------------------


def test_an_entry_is_read_with_its_facts_and_details() -> None:
    detail = log_entry.StepDetail(attempts=[], output=b"1")
    packed = msgspec.Raw(msgspec.msgpack.encode(detail))
    rows = [
        ["finished tx-1 5 2 complete success", packed],
        ["cancelled tx-2 3 0 complete cancelled by hand, twice", None],
    ]
    entry = log_entry.unpack(msgspec.msgpack.encode([1, "ds-1", rows]))
    assert entry.dataset == "ds-1"
    first, second = entry.facts
    assert (first.kind, first.id, first.version, first.epoch) == ("finished", "tx-1", 5, 2)
    assert (first.state, first.status, first.cause) == ("complete", "success", "")
    assert first.detail is not None
    assert msgspec.msgpack.decode(first.detail, type=log_entry.StepDetail) == detail
    assert (second.cause, second.detail) == ("by hand, twice", None)


def test_what_is_no_entry_is_told_as_such() -> None:
    with pytest.raises(ValueError, match="not an entry"):
        log_entry.unpack(b"junk")
    with pytest.raises(ValueError, match="format 2"):
        log_entry.unpack(msgspec.msgpack.encode([2, "ds-1", []]))
