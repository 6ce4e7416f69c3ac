"""Writes what is generated: the ordinary client, the OpenAPI document, the reference pages.

python scripts/generate.py            writes
python scripts/generate.py --check    fails, naming the file, if something is out of date
"""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from urllib.request import urlopen

import msgspec

from waystation import errors
from waystation.config import Config
from waystation.config_sources import load_config
from waystation.pools import states as pool_states
from waystation.subscriptions import states as subscription_states
from waystation.testing.station import quick_settings, serving
from waystation.transactions.states import TRANSITIONS, chart

ROOT = Path(__file__).resolve().parent.parent
CLIENT = ROOT / "src" / "waystation" / "client"

#: Modules of the client that are written once; the others of async_* know asyncio by name.
GENERATED = (
    *("archive", "caller", "channels", "client", "deliveries", "history", "operations"),
    *("pipelines", "pool_hand", "pool_link", "pool_worker", "pools", "producer"),
    *("subscriptions", "topics", "transactions", "waiting", "webhooks"),
)
#: How asynchronous code becomes ordinary code; in this order.
UNASYNC = (
    (r"\basync def\b", "def"),
    (r"\basync with\b", "with"),
    (r"\basync for\b", "for"),
    (r"\bawait ", ""),
    (r"\bAsyncIterator\b", "Iterator"),
    (r"\bAsync([A-Z])", r"\1"),
    (r"\basync_(background|transport)\b", r"sync_\1"),
    (rf"\basync_({'|'.join(GENERATED)})\b", r"sync_\1"),
    (r"__a(enter|exit)__", r"__\1__"),
    (r"\baclose\b", "close"),
    (r"\bThe asynchronous client\b", "The ordinary client"),
    (r"\bthe asynchronous client\b", "the ordinary client"),
)
#: Codes of replies that have no error class.
HTTP_ALONE = (
    ("internal", 500, "The server failed; its log has the error under the `request_id`."),
    ("method-not-allowed", 405, "The path does not support the method; see the header `Allow`."),
    ("upgrade-required", 426, "The route is a WebSocket, and the request has no upgrade."),
)
BANNER = "# Generated from {source} by scripts/generate.py; change that one.\n"


def main() -> int:
    """Returns the exit code."""
    check = "--check" in sys.argv
    stale = []
    for file, text in {**clients(), **asyncio.run(documents())}.items():
        if not file.exists() or file.read_text(encoding="utf-8") != text:
            stale.append(file)
            if not check:
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(text, encoding="utf-8")
    for file in stale:
        print(f"{'out of date' if check else 'written'}: {file.relative_to(ROOT)}")
    if stale and check:
        print("Run `make docs`.")
    return 1 if stale and check else 0


def clients() -> dict[Path, str]:
    """The ordinary client, from the asynchronous one."""
    made = {}
    for name in GENERATED:
        source = CLIENT / f"async_{name}.py"
        text = source.read_text(encoding="utf-8")
        for pattern, replacement in UNASYNC:
            text = re.sub(pattern, replacement, text)
        docstring_end = text.index('"""', 3) + 4
        text = (
            text[:docstring_end] + "\n" + BANNER.format(source=source.name) + text[docstring_end:]
        )
        target = source.with_name(source.name.removeprefix("a"))
        made[target] = formatted(text, target)
    return made


def formatted(text: str, file: Path) -> str:
    """Through ruff: shorter names change where lines break and how imports sort."""
    ruff = [str(Path(sys.executable).with_name("ruff"))]
    for step in (["check", "--fix-only", "--quiet", "--select", "I"], ["format", "--quiet"]):
        command = [*ruff, *step, "--stdin-filename", str(file), "-"]
        text = subprocess.run(
            command, input=text, capture_output=True, text=True, check=True
        ).stdout
    return text


def read_url(url: str) -> bytes:
    """The body of a reply to GET."""
    with urlopen(url) as reply:  # noqa: S310
        body: bytes = reply.read()
    return body


async def documents() -> dict[Path, str]:
    """Pages of docs/reference that tell what the code says."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        async with serving(quick_settings(folder)) as running:
            document = await asyncio.to_thread(read_url, f"{running.url}/openapi.json")
    reference = ROOT / "docs" / "reference"
    return {
        reference / "openapi.json": msgspec.json.format(document).decode().strip() + "\n",
        reference / "errors.md": errors_page(),
        reference / "group-states.md": group_states_page(),
        reference / "pool-states.md": pool_states_page(),
        reference / "settings.md": settings_page(),
        reference / "transaction-states.md": states_page(),
    }


def errors_page() -> str:
    """Return the page of all error codes with HTTP status and exit code."""
    rows = [
        f"| `{kind.code}` | {kind.status or ''} | {kind.exit_code} | {kind.summary()} |"
        for kind in vars(errors).values()
        if isinstance(kind, type)
        and issubclass(kind, errors.WaystationError)
        and not kind.summary().startswith("Base of ")
    ]
    rows += [f"| `{code}` | {status} | | {when} |" for code, status, when in HTTP_ALONE]
    return (
        "# Errors\n\n"
        "Compare the code; texts may change. Routes under `/v1` answer `application/problem+json` "
        "(RFC 9457) with the code in `code` and the next step in `hint`. Routes under `/channel` "
        'and `/probe` answer in the shape of DSPS, `{"error", "code"}`, with 403 '
        "`dsps.auth.rejected` where other routes answer 401.\n\n"
        "| code | HTTP | exit code | when |\n|---|---|---|---|\n"
        # A set, because a class with two bases is reached twice.
        + "\n".join(sorted(set(rows)))
        + "\n\nGenerated from `src/waystation/errors.py`.\n"
    )


def states_page() -> str:
    """The states of a transaction: chart and table."""
    rows = [
        f"| {each.from_ or 'nothing'} | {each.verb} | {each.to} | {each.condition} |"
        for each in TRANSITIONS
    ]
    return (
        "# The states of a transaction\n\n"
        f"```mermaid\n{chart()}\n```\n\n"
        "Anything else is `transaction.illegal-transition`, which names both states.\n\n"
        "| from | verb | to | when |\n|---|---|---|---|\n"
        + "\n".join(rows)
        + "\n\nGenerated from `src/waystation/transactions/states.py`.\n"
    )


def group_states_page() -> str:
    """The states of a subscription's groups: chart and table."""
    rows = [
        f"| {each.from_} | {each.what} | {each.to} | {each.condition} |"
        for each in subscription_states.TRANSITIONS
    ]
    return (
        "# The states of a group\n\n"
        f"```mermaid\n{subscription_states.chart()}\n```\n\n"
        "`main` is a message that is read from the topic, `head` the one that all others of its "
        "group wait for. `done`: delivered; `again`: failed, to be tried again; `late`: put off "
        "until its time; `behind`: put behind others of its group; `dead`: never to be tried again "
        "by itself; `release`: as if it had not been attempted.\n\n"
        "| from | what | to | when |\n|---|---|---|---|\n"
        + "\n".join(rows)
        + "\n\nGenerated from `src/waystation/subscriptions/states.py`.\n"
    )


def pool_states_page() -> str:
    """The states of a pool's recipient keys: chart and table."""
    rows = [
        f"| {each.from_} | {each.what} | {each.to} | {each.condition} |"
        for each in pool_states.TRANSITIONS
    ]
    return (
        "# The states of a recipient key\n\n"
        f"```mermaid\n{pool_states.chart()}\n```\n\n"
        "`move`: the key gets another worker, under a new epoch. `adopt`: a worker came, and gets "
        "what waited for one. `lease over`: its worker said nothing of it for too long.\n\n"
        "| from | what | to | when |\n|---|---|---|---|\n"
        + "\n".join(rows)
        + "\n\nGenerated from `src/waystation/pools/states.py`.\n"
    )


def settings_page() -> str:
    """Return the page of all settings with defaults and descriptions."""
    comments = _comments()
    rows = []
    for name, value, _ in load_config().rows():
        shown = msgspec.json.encode(value).decode()
        variable = "WAYSTATION_" + name.replace(".", "_").upper()
        rows.append(f"| `{name}` | `{shown}` | `{variable}` | {comments.get(name, '')} |")
    return (
        "# Settings\n\n"
        "```toml\n# waystation.toml\n[http]\nport = 8080\n\n[store]\nurl_file = "
        '"/run/secrets/store-url"\n```\n\n'
        "Sources in order of precedence: flags, environment, file (`--config`, else "
        "`./waystation.toml`), defaults. `waystation config show` prints each effective value and "
        "its source. Unknown settings are errors.\n\n"
        "| setting | default | environment | meaning |\n|---|---|---|---|\n"
        + "\n".join(rows)
        + "\n\nGenerated from `src/waystation/config.py`.\n"
    )


def _comments() -> dict[str, str]:
    """Return the `#:` comment above each field, by the name of the setting."""
    source = (ROOT / "src" / "waystation" / "config.py").read_text(encoding="utf-8")
    sections = {
        type(getattr(Config(), field.name)).__name__: field.name
        for field in msgspec.structs.fields(Config)
        if isinstance(getattr(Config(), field.name), msgspec.Struct)
    }
    found: dict[str, str] = {}
    section, comment = "", ""
    for line in source.splitlines():
        if match := re.match(r"class (\w+)\(Section,", line):
            section, comment = sections.get(match.group(1), ""), ""
        elif match := re.match(r"    #: (.*)", line):
            comment = f"{comment} {match.group(1)}".strip()
        elif match := re.match(r"    (\w+): ", line):
            found[f"{section}.{match.group(1)}" if section else match.group(1)] = comment
            comment = ""
    return found


if __name__ == "__main__":
    sys.exit(main())
