"""House style that a script can check. Each test lists all offenders and says what to do."""

from __future__ import annotations

import ast
import functools
import io
import re
import subprocess
import tokenize
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "waystation"
#: Packages of the checkout that are not in the wheel.
OUTSIDE = (ROOT / "bench" / "waystation_bench", ROOT / "examples" / "demo")
MODULES = sorted(file for folder in (SOURCE, *OUTSIDE) for file in folder.rglob("*.py"))
#: Packages that Spark imports by name; they only lead to ours.
PLUGINS = sorted((ROOT / "src").glob("pyspark_*/**/*.py"))
PAGES = [*sorted((ROOT / "docs").rglob("*.md")), *sorted(ROOT.glob("*.md"))]
TEXTS = [
    *MODULES,
    *PLUGINS,
    *sorted(SOURCE.rglob("*.lua")),
    *sorted((ROOT / "tests").rglob("*.py")),
    *sorted((ROOT / "scripts").glob("*.py")),
    *sorted((ROOT / "examples").rglob("*.py")),
    *PAGES,
]

#: Imports point downwards: a part may import parts of lower rows and itself, nothing else.
LAYERS = """
    cli
    waystation_bench demo
    testing
    server
    node
    history
    subscriptions acapy
    transactions pools channels topics
    outbox
    outgoing db messages logs
    store
    client
    config_sources
    runtime
    types config
    errors
"""
#: Parts that the target does not have, and the part of LAYERS beside which each one stands today.
#: "above" and "below" put it between two rows. Delete the line when the part is gone.
OLD_PARTS = {
    "access": "above logs",
    "api": "beside server",
    "archive": "below logs",
    "catalogue": "below logs",
    "database": "below archive",
    "delivery": "beside outbox",
    "node_delivery": "below node",
    "reach": "below node",
    "relay": "above server",
    "telemetry": "above runtime",
}
#: Imports against the direction. Delete a line when the import is gone; add none.
OLD_IMPORTS = {
    ("db", "catalogue"),
}
#: Parts that know less than their row allows.
NARROW = {"client": {"errors", "runtime", "types"}}

#: Modules that may ask the operating system for the time; all others get a Clock.
TIME_READERS = {
    "runtime/clock.py": "is the clock",
    "waystation_bench/": "measures real time",
    "demo/": "prints durations for people",
    "store/embedded/repair.py": "waits for processes",
    "store/embedded/server.py": "waits for processes",
    "store/embedded/supervisor.py": "waits for processes and imports nothing of ours",
    "store/time_machine.py": "checks whether a process is alive, which test time does not change",
    "runtime/logging.py": "formats stamps that the logging library took",
}
#: Modules that are started by name and not imported.
ENTRY_POINTS = {"cli/main.py", "store/embedded/supervisor.py", "testing/plugin.py"}

#: Folders from which pages name modules.
PATH_STARTS = ("", "src/waystation", "bench", "examples")
#: Views of the lake that pages name like modules.
VIEWS = {"waystation.messages_all"}

#: Public class names that more than one module still defines. Add none: rename the new class.
DUPLICATES = """
    Answer Archive Attempt AttemptDetail Backlog Batch Call Calls Cancelled Child Children Claim
    Claimed Committer Condition Count DeadLetter DeadLetterPage DeadLetters Definition
    Deliverer Desk Due Ending Endpoint Endpoints Explanation Fact FailedMessage FailedPage
    Failure Feed Found GroupPage GroupStanding Head Heads Held HistoryPlace Holding Journal
    JournalAttempt JournalLine JournalStep Line Listing LogEntry Moment
    NewMessage NewOptions Operation OperationPage Operations Options Order Parcel Pause
    PipelineDetails PipelinePage Pipelines Place Plan Pool PoolOptions PoolPage Pools
    Producer Progress QuietServer Reason Receipt Received Receiver ReplyCount
    ReplyPage ReplyStanding Retried RetryPolicy RotatedSecret Run Sample Selection
    SetAside SetAsidePage Settled Settlement Settlements ShardStanding Slots Stage
    Subscription SubscriptionOptions SubscriptionPage SubscriptionStanding Subscriptions
    SummaryMetadata Survey Switched Taken Takings Tally Target Terms
    Transactions Transition Turns Verdict Waiting Why Window Worker Workshop
"""

#: Modules and folders, below the root, whose prose follows the rules below. Add a path when all
#: of it passes; no path is ever removed.
PLAIN = """
    src/waystation/channels
    src/waystation/cli/history.py
    src/waystation/cli/history_forget.py
    src/waystation/cli/history_jobs.py
    src/waystation/cli/history_queries.py
    src/waystation/cli/history_session.py
    src/waystation/cli/job_bar.py
    src/waystation/client/topics.py
    src/waystation/config.py
    src/waystation/config_sources.py
    src/waystation/db
    src/waystation/errors.py
    src/waystation/history
    src/waystation/logs
    src/waystation/messages
    src/waystation/runtime
    src/waystation/store
    src/waystation/topics
    src/waystation/types
    tests/channels
    tests/helpers
    tests/history/test_cluster_resources.py
    tests/history/test_query_process.py
    tests/history/test_role.py
    tests/history/test_shell.py
    tests/logs
    tests/messages
    tests/models
    tests/runtime
    tests/store
    tests/test_node.py
    tests/test_style.py
    tests/testing
    tests/topics
"""
#: First words of function docstrings. Add a verb that is missing.
VERBS = """
    abort accept acknowledge acquire add adopt advance allow answer append apply archive arrange ask
    assert assign attach audit authenticate authorize await backfill begin bind blank block bound
    break build bump cache calculate call cancel cap carry change check choose claim clean clear
    close collect combine commit compact compare compensate compile complete compose compress
    compute configure confirm connect consume continue convert copy correct count create cut deal
    decide declare decode decompress decorate decrease decrypt deduplicate defer define delay delete
    deliver depend describe deserialize detach detect determine disable discard disconnect dispatch
    display do drain draw drive drop dump empty enable encode encrypt end enforce enqueue ensure
    enter escape estimate evaluate examine exclude execute exit expand expect expire explain export
    expose extend extract fail feed fence fetch fill filter find finish fire fix flush follow force
    forget fork format forward free freeze generate get give grant group grow guess handle hash head
    hide hold identify ignore implement import include increase increment index infer ingest
    initialize insert inspect install interpret interrupt invalidate invoke issue iterate join jump
    keep kill label launch lead leave let limit link list listen load lock log look lower make map
    mark match mean measure merge migrate mirror modify monitor mount move multiply name normalize
    note notify number obtain offer omit open order overwrite pack pad page parse partition pass
    patch pause perform pick ping pipe place plan poll pop populate post postpone predict prefer
    prefix prepare present prevent print probe process produce prolong promise protect prove provide
    prune publish pull purge push put quarantine query queue quote raise rank rate react read reap
    rearrange rebuild recall receive reclaim recognize recompute reconcile reconnect record recover
    redact redirect redraw redrive reduce refer refresh refuse register reject relay release reload
    rely remember remove rename render renew reopen repair repeat replace replay reply report
    request require reread reroute rerun rescue reserve reset resize resolve respond restart restore
    restrict result resume retain retrieve retry return reuse revert review revive revoke rewrite
    roll rotate round route run sample satisfy save say scale scan schedule seal search seek seize
    select send separate serialize serve set settle shift show shuffle shut sign signal simulate
    skip sleep slice sort spawn split spread stamp start state stay stop store stream strip submit
    subscribe subtract suggest sum supervise supply suspend swap switch synchronize take tear tell
    terminate test thaw throttle tick tighten time toggle touch trace track transfer transform
    translate traverse treat trigger trim truncate try tune turn unblock undo unfreeze unlink unlock
    unpack unpin unregister unsubscribe unwrap update upgrade upload use validate verify view visit
    wait wake walk warm warn watch widen withdraw work wrap write yield
"""
#: Openings of docstrings and comments that hide the actor or the object.
RIDDLES = re.compile(
    r"(What|Who|Whoever|Whom|Whose|Which|Where|Why|How|That|Those|These|This|It|Its|There|They"
    r"|Others|Nothing|Nobody|Somebody|Something|Somewhere|Begins|Ends|Tells|Told|Goes|Lets|Has|Is"
    r"|Was)\b"
)
#: Words for which the field has others: pattern, and the words to use instead.
BANNED_WORDS = {
    r"whoever|somebody|nobody|anybody": "the actor: client, worker, owner, node, operator",
    r"dies|died|deaths?|deaf": "crash",
    r"(?:is|are|was|be) (?-i:none)": "is invalid, is missing, does not exist",
    r"any ?more": "the state now, such as `lost the lease`",
    r"(?:is|are|was|were|be) told": "report, notify, return",
    r"(?:come|came|comes|became|becomes?) of (?:it|them|each)": "outcome, result",
    r"lets? go|letting go": "delete, release",
    r"goes on|going on": "continue, resume",
    r"for good": "permanently",
    r"(?:is|are) away|comes? back": "is unavailable, reconnects",
    r"put off|tried again|try again": "postpone, retry",
    r"set aside|given up": "reject, fail permanently",
    r"wholly|as a whole": "atomically",
    r"courier|herald|errand|tenure|workshop|upkeep": "worker, notifier, task, lease, maintenance",
}
BANNED = re.compile("|".join(rf"\b(?:{pattern})\b" for pattern in BANNED_WORDS), re.IGNORECASE)


@functools.cache
def text_of(file: Path) -> str:
    return file.read_text(encoding="utf-8")


@functools.cache
def tree_of(file: Path) -> ast.Module:
    return ast.parse(text_of(file))


def name_of(file: Path) -> str:
    """Return the path below `waystation`; for packages outside of it, below their folder."""
    for folder in OUTSIDE:
        if file.is_relative_to(folder):
            return file.relative_to(folder.parent).as_posix()
    return file.relative_to(SOURCE).as_posix()


def module_of(file: Path) -> str:
    name = name_of(file).removesuffix(".py").replace("/", ".")
    return f"waystation.{name}" if file.is_relative_to(SOURCE) else name


def path_of(file: Path) -> str:
    return file.relative_to(ROOT).as_posix()


def part_of(file: Path) -> str:
    return name_of(file).partition("/")[0].removesuffix(".py")


@functools.cache
def words(table: str) -> frozenset[str]:
    return frozenset(table.split())


@functools.cache
def imports_of(file: Path) -> frozenset[str]:
    """Return the modules that `file` imports, and each imported name as `module.name`.

    A pattern and no parser, because parsing all modules takes longer than all tests of this file.
    """
    text = text_of(file)
    found = set(re.findall(r"^\s*import (\w[\w.]*)", text, re.MULTILINE))
    for module, names in re.findall(
        r"^\s*from (\w[\w.]*) import (\([^)]*\)|[^\n]*)", text, re.MULTILINE
    ):
        listed = re.sub(r"#.*| as \w+", "", names).strip("()").split(",")
        found |= {module, *(f"{module}.{name.strip()}" for name in listed if name.strip())}
    return frozenset(found)


def ranks() -> dict[str, float]:
    """Return the height of each part: the lowest row of LAYERS is 0."""
    rows = [row.split() for row in LAYERS.strip().splitlines()]
    height: dict[str, float] = {
        part: float(len(rows) - number) for number, row in enumerate(rows) for part in row
    }
    step = {"above": 0.5, "beside": 0.0, "below": -0.5}
    waiting = dict(OLD_PARTS)
    while waiting:
        for part, place in list(waiting.items()):
            side, other = place.split()
            if other in height:
                height[part] = height[other] + step[side] * (0.5 if other in OLD_PARTS else 1)
                del waiting[part]
    return height


def fail_with(offenders: Iterable[str], remedy: str) -> None:
    """Fail with all offenders, one per line, and with what to do."""
    listed = sorted(offenders)
    assert not listed, f"{remedy}\n  " + "\n  ".join(listed)


def test_imports_point_downwards() -> None:
    height = ranks()
    offenders = set()
    for file in MODULES:
        part = part_of(file)
        if part == "__init__":
            continue
        if part not in height:
            offenders.add(f"{part} is in no row of LAYERS")
            continue
        for module in imports_of(file):
            head, *rest = module.split(".")
            other = rest[0] if head == "waystation" and rest else head
            if other == part or other not in height or (part, other) in OLD_IMPORTS:
                continue
            if height[other] >= height[part] or other not in NARROW.get(part, height):
                offenders.add(f"{name_of(file)} imports {module}")
    fail_with(offenders, "Move the code to a part that may import it, see LAYERS:")


def test_exceptions_of_import_direction_are_needed() -> None:
    parts = {part_of(file) for file in MODULES}
    pairs = {
        (part_of(file), module.split(".")[1])
        for file in MODULES
        for module in imports_of(file)
        if module.startswith("waystation.")
    }
    gone = {f"OLD_PARTS: {part}" for part in OLD_PARTS.keys() - parts}
    gone |= {f"OLD_IMPORTS: {pair}" for pair in OLD_IMPORTS - pairs}
    fail_with(gone, "Delete these lines of tests/test_style.py:")


def test_time_comes_from_the_clock() -> None:
    asked = re.compile(
        r"\btime\.(?:time|monotonic|perf_counter)(?:_ns)?\(|\bdatetime\.(?:now|utcnow|today)\("
    )
    offenders = {
        f"{name_of(file)}: {found[0]}"
        for file in MODULES
        if not name_of(file).startswith(tuple(TIME_READERS))
        for found in asked.finditer(text_of(file))
    }
    fail_with(offenders, "Take a Clock, or the time of the event loop:")


def test_modules_have_docstrings_and_sorted_public_names() -> None:
    offenders = set()
    for file in MODULES:
        if not text_of(file).startswith('"""'):
            offenders.add(f"{name_of(file)} has no docstring")
        if listed := re.search(r"^__all__ = (\[[^]]*\])", text_of(file), re.MULTILINE):
            names = list(ast.literal_eval(listed[1]))
            if names != sorted(names):
                offenders.add(f"{name_of(file)}: __all__ is not sorted")
    fail_with(offenders, "Write the docstring; sort the names:")


def test_every_module_is_imported() -> None:
    used = {module for file in (*MODULES, *PLUGINS) for module in imports_of(file)}
    # The command line imports its commands by name.
    main = text_of(SOURCE / "cli" / "main.py")
    used |= {f"waystation.cli.{name}" for name in re.findall(r': \("(\w+)", "\w+"\),', main)}
    offenders = {
        name_of(file)
        for file in MODULES
        if name_of(file) not in ENTRY_POINTS
        and file.name != "__init__.py"
        and module_of(file) not in used
    }
    fail_with(offenders, "Delete these modules, because nothing imports them:")


def test_public_class_names_are_unique() -> None:
    places: dict[str, list[str]] = {}
    for file in MODULES:
        for name in re.findall(r"^class ([A-Za-z]\w*)", text_of(file), re.MULTILINE):
            places.setdefault(name, []).append(name_of(file))
    known = words(DUPLICATES)
    offenders = {
        f"{name}: {', '.join(where)}"
        for name, where in places.items()
        if len(where) > 1 and name not in known
    }
    fail_with(offenders, "Rename one class of each line:")
    fail_with({name for name in known if len(places.get(name, [])) < 2}, "Remove from DUPLICATES:")


def test_no_text_is_unfinished() -> None:
    unfinished = re.compile(r"\b(TODO|FIXME|XXX|HACK|NotImplementedError)\b|\t")
    offenders = {
        f"{path_of(file)}:{text_of(file)[: found.start()].count(chr(10)) + 1}: {found[0]!r}"
        for file in TEXTS
        if file != Path(__file__)
        for found in unfinished.finditer(text_of(file))
    }
    fail_with(offenders, "Finish the work, or use spaces for a tab:")


def test_texts_name_designs_and_not_their_numbers() -> None:
    numbered = re.compile(r"\bseed 00\d\b", re.IGNORECASE)
    offenders = {
        path_of(file) for file in TEXTS if file != Path(__file__) and numbered.search(text_of(file))
    }
    fail_with(offenders, "Name the design as docs/design-decisions.md does; drop its number:")


def test_pages_are_linked_and_links_resolve() -> None:
    pages = {*(ROOT / "docs").rglob("*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"}
    linked = {ROOT / "README.md"}
    broken = set()
    for page in pages:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text_of(page)):
            found = (page.parent / target).resolve()
            linked.add(found)
            if not found.exists():
                broken.add(f"{path_of(page)} links to {target}")
    fail_with(broken, "Correct these links, because their targets do not exist:")
    alone = {path_of(page) for page in pages if page.resolve() not in linked}
    fail_with(alone, "Link these pages from another page:")


def anchors_of(page: Path) -> set[str]:
    """Return the anchors of the headings of a page, as GitHub makes them."""
    prose = re.sub(r"^```.*?^```", "", text_of(page), flags=re.DOTALL | re.MULTILINE)
    anchors = set()
    for heading in re.findall(r"^#+ (.*)$", prose, re.MULTILINE):
        shown = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).lower()
        anchors.add(re.sub(r"[^\w\- ]", "", shown).strip().replace(" ", "-"))
    return anchors


def test_links_to_headings_resolve() -> None:
    offenders = set()
    for page in PAGES:
        for target, anchor in re.findall(r"\]\(([^)#:]*)#([^)]*)\)", text_of(page)):
            found = (page.parent / target).resolve() if target else page
            if found.suffix == ".md" and found.exists() and anchor not in anchors_of(found):
                offenders.add(f"{path_of(page)} links to {target}#{anchor}")
    fail_with(offenders, "Correct these links, because their headings do not exist:")


def test_pages_name_tests_that_exist() -> None:
    offenders = set()
    for page in PAGES:
        if page.name == "CHANGELOG.md":
            continue
        for path, name in re.findall(r"`(tests/[\w/]+(?:\.py)?)(?:::(\w+))?`", text_of(page)):
            file = ROOT / path
            if not file.exists():
                offenders.add(f"{path_of(page)}: {path}")
            elif name and f"def {name}(" not in text_of(file):
                offenders.add(f"{path_of(page)}: {path}::{name}")
    fail_with(offenders, "Write the new place of these tests, see tests/renamed.txt:")
    named = re.findall(r"`tests/[\w/]+\.py::", text_of(ROOT / "docs" / "guarantees.md"))
    assert len(named) > 150, "docs/guarantees.md must name the tests of each promise"


def test_pages_name_modules_that_exist() -> None:
    """Check names such as `store/leases.py`, and in docs/internals also `leases.py`."""
    known = {file.name for file in TEXTS} | {file.name for file in (ROOT / "tests").rglob("*.lua")}
    imported = {name for file in TEXTS if file.suffix == ".py" for name in imports_of(file)}
    # Store keys and files have the same form as modules.
    texts = "".join(text_of(file) for file in (*MODULES, *SOURCE.rglob("*.lua")))
    offenders = set()
    for page in (ROOT / "docs").rglob("*.md"):
        for name in re.findall(r"`([\w./]+)`", text_of(page)):
            if re.fullmatch(r"(?:\w+/)+\w+\.(?:py|lua)", name):
                exists = any((ROOT / start / name).exists() for start in PATH_STARTS)
            elif re.fullmatch(r"\w+\.(?:py|lua)", name) and page.parent.name == "internals":
                exists = name in known
            elif re.fullmatch(r"waystation(?:\.\w+)+", name):
                exists = name in imported or name in texts or name in VIEWS
            else:
                continue
            if not exists:
                offenders.add(f"{path_of(page)}: {name}")
    fail_with(offenders, "Write the present names of these modules:")


def test_architecture_page_has_the_import_table_and_walks_of_the_code() -> None:
    page = text_of(ROOT / "docs" / "internals" / "architecture.md")
    rows = [
        parts.replace(",", "").split()
        for parts in re.findall(r"^\| \d+ \| ([a-z_, ]+) \|$", page, re.MULTILINE)
    ]
    assert rows == [row.split() for row in LAYERS.strip().splitlines()]
    steps = re.findall(r"^\| \d+ \| `([\w/.]+)` \| (?:`(\w+)`|–) \|", page, re.MULTILINE)
    offenders = [
        f"{file}: {function}"
        for file, function in steps
        if not (SOURCE / file).exists()
        or (function and f"def {function}(" not in text_of(SOURCE / file))
    ]
    fail_with(offenders, "Name files and functions of the walks as the code has them:")
    walks = page.split("## Walk: ")[1:]
    opened = [{file for file, _ in steps if f"`{file}`" in walk} for walk in walks]
    assert [len(files) <= 8 for files in opened] == [True, True], opened


def test_makefile_names_paths_that_exist() -> None:
    plan = subprocess.run(
        ["make", "-n", "test", "verify"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    named = set(re.findall(r"\b((?:tests|scripts)/[\w/.]+)", plan))
    assert len(named) > 10
    fail_with(
        {path for path in named if not (ROOT / path).exists()},
        "Correct these paths in the Makefile, because they do not exist:",
    )


def plain_files() -> list[Path]:
    files: list[Path] = []
    for path in sorted(words(PLAIN)):
        place = ROOT / path
        assert place.exists(), f"Write the new place of {path} into PLAIN of tests/test_style.py."
        files += sorted(place.rglob("*.py")) if place.is_dir() else [place]
    return files


def comments_of(file: Path) -> Iterator[tuple[int, str]]:
    """Yield the comments of a module; consecutive lines are one comment."""
    line, text = 0, ""
    for token in tokenize.generate_tokens(io.StringIO(text_of(file)).readline):
        if token.type == tokenize.COMMENT:
            said = token.string.lstrip("#: ")
            if text and token.start[0] == line + 1 and token.line.lstrip().startswith("#"):
                line, text = line + 1, f"{text} {said}"
            else:
                if text:
                    yield line, text
                line, text = token.start[0], said
    if text:
        yield line, text


def docstrings_of(file: Path) -> Iterator[tuple[int, ast.AST, str]]:
    for node in ast.walk(tree_of(file)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text:
                yield node.body[0].lineno, node, " ".join(text.split())


def is_function(node: ast.AST) -> bool:
    """Whether `node` is a function; a property counts as a noun."""
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not any(
        "property" in ast.unparse(decorator) for decorator in node.decorator_list
    )


def opens_with_verb(text: str) -> bool:
    first = text.split(maxsplit=1)[0].rstrip(".,:;").lower()
    return first in words(VERBS) or text.startswith(("Whether ", "True if "))


def language_offenders(file: Path) -> Iterator[str]:
    """Yield the places of a module whose prose breaks a rule that a script can check."""
    place = path_of(file)
    for line, node, text in docstrings_of(file):
        first = text.split()[0].rstrip(".,:;").lower()
        if RIDDLES.match(text):
            yield f"{place}:{line}: opens with {first!r}: name the actor and the object"
        elif is_function(node) and not opens_with_verb(text):
            yield f"{place}:{line}: open with an imperative verb, not with {first!r}"
        if found := BANNED.search(re.sub(r"`[^`]*`", "", text)):
            yield f"{place}:{line}: {found[0]!r}: use {better_words(found[0])}"
    for line, text in comments_of(file):
        if RIDDLES.match(text):
            yield f"{place}:{line}: comment opens with {text.split()[0]!r}: name the subject"
        if found := BANNED.search(re.sub(r"`[^`]*`", "", text)):
            yield f"{place}:{line}: {found[0]!r}: use {better_words(found[0])}"
    for node in ast.walk(tree_of(file)):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in ("debug", "info", "warning", "error", "exception")
            and node.args
            and isinstance(node.args[0], ast.Constant)
            and isinstance(node.args[0].value, str)
            and not re.fullmatch(r"[a-z][\w /{}-]*", node.args[0].value)
        ):
            yield f"{place}:{node.lineno}: log line is not `noun past-tense-verb`"


def better_words(found: str) -> str:
    return next(
        words
        for pattern, words in BANNED_WORDS.items()
        if re.fullmatch(pattern, found, re.IGNORECASE)
    )


def test_prose_is_plain() -> None:
    offenders = {each for file in plain_files() for each in language_offenders(file)}
    fail_with(offenders, "Write these texts anew from what the code does:")
