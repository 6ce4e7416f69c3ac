"""`waystation tx`, `pipeline` and `why` as a user runs them, with a station that has an app."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Run, running_station
from waystation.cli.main import main

APP = '''
from waystation import App, Fail, RetryLater, Wait

app = App()


@app.step("refund/approve")
async def approve(ctx, refund):
    """Asks somebody."""
    match ctx.switch("approved"):
        case None:
            return Wait("approved", at_most="2d")
        case "yes":
            return refund
        case _:
            return Fail("refused")


@app.step("refund/break")
def broken(ctx, given):
    ctx.log.info("about to break")
    raise RuntimeError("broken on purpose")


@app.step("refund/later")
def later(ctx, given):
    return given if ctx.retries else RetryLater("1h", note="the bank is closed")


app.pipeline("refund", ["refund/approve"])
app.pipeline("broken", ["refund/break"])
app.pipeline("later", ["refund/later"])
app.pipeline("fan", [("util/parallel", {"pipelines": ["refund", "refund"]})])
app.pipeline("lonely", ["nobody/serves"])
'''

Here = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def station(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("shop")
    (folder / "shop.py").write_text(APP)
    arguments = ("dev", "--app", "shop:app", "--port", "0", "--data", "data")
    with running_station(folder, *arguments) as said:
        yield {**said, "folder": folder}


@pytest.fixture
def here(
    station: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Here:
    """Runs a command in this process, which is quicker than a process of its own."""

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        monkeypatch.setattr("sys.argv", ["waystation", *arguments, "--url", station["url"]])
        code = 0
        try:
            main()
        except SystemExit as ended:
            code = int(ended.code or 0)
        said = capsys.readouterr()
        return subprocess.CompletedProcess(arguments, code, said.out, said.err)

    return run


def started(here: Here, *arguments: str) -> str:
    done = here("tx", "start", *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()[-1]


def until(here: Here, transaction_id: str, code: str, *, seconds: float = 60.0) -> str:
    """What `why` says once it has this code."""
    end = time.monotonic() + seconds
    while not (told := here("why", transaction_id).stdout).startswith(f"{code} "):
        assert time.monotonic() < end, told
        time.sleep(0.01)
    return told


def test_a_transaction_from_start_to_end(run: Run, station: dict[str, Any], here: Here) -> None:
    url = ("--url", station["url"])
    done = run("tx", "start", "refund", '{"cents": 500}', "--external-id", "r-17", *url)
    assert done.returncode == 0, done.stderr
    transaction_id = done.stdout.split()[-1]
    assert done.stdout == f"started {transaction_id}\n"
    again = here("tx", "start", "refund", '{"cents": 500}', "--external-id", "r-17")
    assert again.stdout == f"{transaction_id} was there already\n"
    told = until(here, transaction_id, "waiting_switch")
    assert "It waits for switch approved in step 1 (refund/approve) of pipeline refund" in told
    switched = here("tx", "switch", transaction_id, "approved", "yes")
    assert switched.stdout == "approved is set, and was waited for\n"
    waited = here("tx", "wait", transaction_id, "30s")
    assert waited.returncode == 0
    first, external_id, output = waited.stdout.splitlines()
    assert first.startswith(f"{transaction_id} is success, refund, since ")
    assert (external_id, output) == ("  external id r-17", '{"cents":500}')
    shown = json.loads(here("tx", "get", transaction_id, "--json").stdout)
    assert (shown["metadata"]["status"], shown["data"]) == ("success", {"cents": 500})


def test_tx_start_with_an_unknown_option_warns_beside_the_output(here: Here) -> None:
    done = here("tx", "start", "refund", "1", "-m", "webhok=https://shop.example/")
    assert (done.returncode, done.stdout.startswith("started tx-")) == (0, True)
    assert "metadata.webhok is not an option" in done.stderr
    assert "Did you mean webhook?" in done.stderr


def test_the_exit_code_tells_whether_it_went_well(here: Here) -> None:
    transaction_id = started(here, "refund", "1")
    until(here, transaction_id, "waiting_switch")
    late = here("tx", "wait", transaction_id, "50ms")
    assert (late.returncode, "waiting_switch" in late.stdout) == (1, True)
    here("tx", "switch", transaction_id, "approved", "no")
    ended = here("tx", "wait", transaction_id, "30s")
    assert (ended.returncode, " is failed, " in ended.stdout) == (1, True)
    assert '{"error":"refused"}' in ended.stdout
    broken = here("tx", "start", "broken", "--wait", "30s")
    assert (broken.returncode, " is internal-error, " in broken.stdout) == (1, True)
    broken_id = broken.stdout.split()[0]
    assert broken.stdout.endswith(f"  where it broke: waystation tx journal {broken_id}\n")


def test_the_journal_tells_attempts_lines_and_traces(here: Here) -> None:
    transaction_id = started(here, "broken")
    here("tx", "wait", transaction_id)
    told = here("tx", "journal", transaction_id).stdout
    assert f"{transaction_id} of broken is complete, internal-error" in told
    assert "about to break" in told
    assert "RuntimeError: broken on purpose" in told
    (step,) = json.loads(here("tx", "journal", transaction_id, "--json").stdout)["steps"]
    assert (step["type"], step["attempts"]) == ("refund/break", 1)


def test_what_sleeps_is_woken_and_what_waits_is_cancelled(here: Here) -> None:
    sleeper = started(here, "later", "7")
    assert "retry 1: the bank is closed" in until(here, sleeper, "retrying")
    assert here("tx", "wake", sleeper).stdout == f"{sleeper} is woken\n"
    assert here("tx", "wait", sleeper).returncode == 0
    waiter = started(here, "refund", "-m", "lang=de")
    # What runs at that moment is only asked to end.
    until(here, waiter, "waiting_switch")
    cancelled = here("tx", "cancel", waiter, "--cause", "sold out")
    assert cancelled.stdout == f"{waiter} is cancelled\n"
    assert here("tx", "cancel", waiter).stdout == f"{waiter} was cancelled before\n"
    assert "as cancelled at" in until(here, waiter, "final")
    final = here("tx", "cancel", sleeper)
    assert (final.returncode, "has ended" in final.stderr) == (6, True)


def test_children_and_lists(here: Here) -> None:
    assert here("tx", "list", "--state", "waiting_children").stdout == "No such transactions.\n"
    parent = started(here, "fan", "1")
    until(here, parent, "waiting_children")
    told = here("tx", "children", parent).stdout
    assert "0 of 2 have ended; cancel_rest" in told
    listed = here("tx", "list", "--state", "waiting_children").stdout
    assert parent in listed
    rows = json.loads(here("tx", "list", "--most", "2", "--json").stdout)["transactions"]
    assert len(rows) == 2
    assert here("tx", "cancel", parent).stdout == f"{parent} is to end\n"
    assert here("tx", "wait", parent).returncode == 1
    assert "2 of 2 have ended" in here("tx", "children", parent).stdout, "what it has ended in"
    assert here("tx", "children", started(here, "broken")).stdout == "No Parallel is under way.\n"


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (("tx", "start", "nobody"), 3, "waystation pipeline list"),
        (("tx", "start", "refund", "{"), 2, "not JSON"),
        (("tx", "start", "refund", "-m", "x"), 2, "name=value"),
        (("tx", "start", "refund", "--start-at", "soon"), 2, "not a time"),
        (("tx", "get", "tx-1"), 3, "waystation tx list"),
        (("tx", "wait", "tx-1", "soon"), 2, "not a valid duration"),
        (("tx", "switch", "tx-1", "approved"), 2, "Give a value, or --delete"),
        (("tx", "list", "--state", "asleep"), 2, "There is no state"),
        (("pipeline", "show", "nobody"), 3, "waystation pipeline list"),
        (("pipeline", "put", "no-such-file"), 2, "cannot be read"),
    ],
)
def test_what_cannot_be_done_is_told_with_a_way_out(
    here: Here, arguments: tuple[str, ...], code: int, told: str
) -> None:
    done = here(*arguments)
    assert (done.returncode, told in done.stderr) == (code, True), done.stderr
    assert "Traceback" not in done.stderr


def test_what_is_in_the_way_is_told_with_where_to_look(here: Here) -> None:
    transaction_id = started(here, "refund", "1", "--external-id", "in-the-way")
    taken = here("tx", "start", "refund", "2", "--external-id", "in-the-way")
    assert (taken.returncode, transaction_id in taken.stderr) == (6, True)
    assert "waystation tx get tx-" in taken.stderr
    parent = started(here, "fan", "1")
    until(here, parent, "waiting_children")
    awake = here("tx", "wake", parent)
    assert (awake.returncode, "waystation why ID" in awake.stderr) == (6, True)
    here("tx", "cancel", transaction_id)
    for verb in (("wake",), ("switch", "approved", "yes")):
        ended = here("tx", verb[0], transaction_id, *verb[1:])
        assert (ended.returncode, "waystation why ID" in ended.stderr) == (6, True), ended.stderr


def test_a_wait_that_cannot_be_waited_starts_nothing(here: Here) -> None:
    done = here("tx", "start", "refund", "1", "--external-id", "never", "--wait", "soon")
    assert done.returncode == 2
    assert "wait 'soon' is not a valid duration" in done.stderr
    assert here("tx", "list", "--external-id", "never").stdout == "No such transactions.\n"


def test_who_waits_is_told_the_id_before(here: Here) -> None:
    """Whatever ends the wait: what was started can be found again."""
    done = here("tx", "start", "refund", "1", "--wait", "10ms")
    assert done.returncode == 1
    assert done.stderr == f"started {done.stdout.split()[0]}\n"


def test_the_versions_of_a_pipeline_are_shown(here: Here, tmp_path: Path) -> None:
    file = tmp_path / "pipelines.json"
    versions = []
    for steps in (["refund/later"], ["refund/later", "refund/later"]):
        file.write_text(json.dumps({"name": "often", "steps": steps}))
        done = json.loads(here("pipeline", "put", str(file), "--json").stdout)
        versions.append(done["pipelines"][0]["active"])
    shown = here("pipeline", "show", "often").stdout
    assert shown.startswith(f"often is active, version {versions[1]}, node group master\n")
    assert f"  before it {versions[0]}\n" in shown
    assert here("pipeline", "show", "often", "--version", versions[0]).stdout.count("later") == 1


def test_why_of_what_is_not_there(here: Here) -> None:
    done = here("why", "tx-1")
    assert (done.returncode, done.stdout[:9]) == (3, "unknown  ")
    assert json.loads(here("why", "tx-1", "--json").stdout)["code"] == "unknown"
    lonely = started(here, "lonely")
    assert "nobody/serves" in until(here, lonely, "no_node_for_step")


def test_pipelines_from_a_file(here: Here, tmp_path: Path) -> None:
    file = tmp_path / "pipelines.json"
    file.write_text(
        '[{"name": "made", "steps": ["refund/later", {"type": "util/delay", "options": {"min": 1,'
        ' "max": 2}}], "description": "Mine."}, {"name": "odd", "steps": ["nobody/serves"]}]'
    )
    made = here("pipeline", "put", str(file))
    assert made.returncode == 0, made.stderr
    assert made.stdout.startswith("made has version ")
    assert "Nobody in node group master serves nobody/serves" in " ".join(made.stderr.split())
    assert here("pipeline", "put", str(file)).stdout == made.stdout, "the same changes nothing"
    shown = here("pipeline", "show", "made").stdout
    assert "made is active, version " in shown
    assert '{"max":2,"min":1}' in shown
    assert here("pipeline", "pause", "made").stdout == "made is paused\n"
    assert "paused" in here("pipeline", "list").stdout
    held = started(here, "made")
    assert "Pipeline made is paused" in until(here, held, "held")
    assert here("pipeline", "resume", "made").stdout == "made is active\n"
    until(here, held, "retrying")
    assert here("pipeline", "delete", "odd").stdout == "odd is retired\n"
    names = [
        each["name"] for each in json.loads(here("pipeline", "list", "--json").stdout)["pipelines"]
    ]
    assert "odd" not in names
    assert {"made", "refund"} <= set(names)


@pytest.mark.slow
def test_dev_takes_up_a_change_of_the_app(here: Here, station: dict[str, Any]) -> None:
    file = station["folder"] / "shop.py"
    file.write_text(
        APP
        + '\n\n@app.step("nobody/serves")\nasync def now_served(ctx, given):\n    return "new"\n'
    )
    lonely = started(here, "lonely")
    assert here("tx", "wait", lonely, "60s").stdout.splitlines()[-1] == '"new"'


@pytest.mark.slow
def test_an_app_that_cannot_be_loaded_is_told_at_the_start(run: Run) -> None:
    for spec, told in (("nothing", "module:name"), ("no_such_module:app", "no_such_module")):
        done = run("dev", "--app", spec, "--port", "0")
        assert (done.returncode, told in done.stderr) == (2, True), done.stderr
        assert "Traceback" not in done.stderr
