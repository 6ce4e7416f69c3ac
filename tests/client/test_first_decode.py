"""Threads that share a client decode their first replies at the same moment.

msgspec crashes the process when two threads decode into the same struct class for the first time
(docs/internals/dependencies.md). Each case runs in processes of its own, because a class is new
only once, with threads that alternate as often as Python allows.
"""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import waystation.client

_RUNS = 2

_PRELUDE = """
import sys, threading
from contextlib import suppress

sys.setswitchinterval(1e-6)

def in_four_threads(work):
    together = threading.Barrier(4)

    def one():
        together.wait()
        with suppress(Exception):  # the replies are not valid; crashes are what this looks for
            work()

    threads = [threading.Thread(target=one) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
"""

_CLIENT = """
import importlib, pkgutil
import msgspec
import waystation.client
from waystation.client.messages import Answer, decode_answer, decode_batch, error_for

for module in pkgutil.iter_modules(waystation.client.__path__):
    importlib.import_module(f"waystation.client.{module.name}")

def below(kind):
    for each in kind.__subclasses__():
        yield each
        yield from below(each)

kinds = [each for each in below(msgspec.Struct) if each.__module__.startswith("waystation.client")]
assert len(kinds) > 40, kinds
in_four_threads(lambda: error_for(Answer(404, b'{"code":"not-found"}')))
fetched = b'{"messages":[{"id":"m","content":1}],"moreMessages":false,"ackHandle":"h"}'
in_four_threads(lambda: decode_batch(Answer(200, fetched)))
for kind in reversed(kinds):  # those that hold others first: building them takes longest
    # A value for each field: decoding looks at the type of every field that is there.
    body = msgspec.json.encode(dict.fromkeys(kind.__struct_encode_fields__, 1))
    in_four_threads(lambda: decode_answer(Answer(200, body), kind))
print("alive")
"""

_ONCE = """
import msgspec
from waystation.transactions.context import BlockingContext

class Call:
    def begin_once(self, name):
        return b'{"x":[],"y":{}}'

for n in range(200):
    inner = msgspec.defstruct(f"Inner{n}", [("a", int), ("b", str | None, None)])
    outer = msgspec.defstruct(f"Outer{n}", [("x", list[inner]), ("y", dict[str, inner])])
    in_four_threads(lambda: BlockingContext(Call(), None).once("n", int, result_type=outer))
print("alive")
"""

_STEP = """
import msgspec
from waystation.runtime.decoding import decode_json
from waystation.transactions.function_step import FunctionStep

for n in range(200):
    inner = msgspec.defstruct(f"Inner{n}", [("a", int), ("b", str | None, None)])
    outer = msgspec.defstruct(f"Outer{n}", [("x", list[inner]), ("y", dict[str, inner])])

    def step(ctx, given): ...

    step.__annotations__ = {"given": outer, "return": outer}
    resolved = FunctionStep("test/step", step)
    turn = iter([resolved.resolve] + 3 * [lambda: decode_json(b'{"x":[],"y":{}}', outer)])
    in_four_threads(lambda: next(turn)())
print("alive")
"""


@pytest.mark.parametrize(
    "script",
    [
        pytest.param(_CLIENT, id="replies-of-a-client"),
        pytest.param(_ONCE, id="results-of-once-in-step-threads"),
        pytest.param(_STEP, id="input-of-a-step"),
    ],
)
def test_first_decode_in_four_threads_does_not_crash(script: str) -> None:
    code = textwrap.dedent(_PRELUDE) + script
    running = [
        subprocess.Popen(
            [sys.executable, "-X", "faulthandler", "-c", code],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(_RUNS)
    ]
    for each in running:
        out, err = each.communicate(timeout=100)
        assert (each.returncode, out) == (0, "alive\n"), err[-2000:]


def test_client_decodes_into_structs_only_by_shared_decoders() -> None:
    """A call of `msgspec.json.decode` with a struct builds its description in any thread."""
    client = Path(waystation.client.__file__).parent
    direct = re.compile(r"msgspec\.json\.(decode\([^\n]*type=(?!msgspec\.Raw)|Decoder\()")
    calls = {
        f"{file.name}: {line.strip()}"
        for file in client.glob("**/*.py")
        for line in file.read_text(encoding="utf-8").splitlines()
        if direct.search(line)
    }
    assert calls == set(), "use waystation.runtime.decoding"
