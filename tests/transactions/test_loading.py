"""Loading an app: what is wrong is told, and a change is taken in while everything stays up."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.transactions.calling import call
from waystation import App
from waystation.errors import AppInvalidError
from waystation.transactions.loading import AppFiles, load
from waystation.transactions.outcomes import Success

SHOP = """
from waystation import App
from shop_prices import PRICE

app = App()

@app.step("shop/price")
async def price(ctx):
    return PRICE

app.pipeline("sell", ["shop/price"])
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of a shop, where the process was started."""
    (tmp_path / "shop.py").write_text(SHOP)
    (tmp_path / "shop_prices.py").write_text("PRICE = 1\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    # As for most people, whatever the machine of the tests prefers.
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


def write(file: Path, text: str, *, later_ns: int = 1) -> None:
    """Another content, in the same second as the one before, and of the same length or not."""
    before = file.stat().st_mtime_ns if file.exists() else 0
    file.write_text(text)
    if before:
        os.utime(file, ns=(before + later_ns, before + later_ns))


async def price_of(app: App) -> bytes:
    outcome = await call(app, "shop/price")
    assert isinstance(outcome, Success)
    return outcome.output


async def test_an_app_is_found_where_the_process_was_started(folder: Path) -> None:
    app = load("shop:app")
    assert await price_of(app) == b"1"
    assert [each.name for each in app.pipelines] == ["sell"]


@pytest.mark.parametrize("spec", ["", "shop", ":app", "shop/app:app", "../shop:app", "shop.py:app"])
def test_a_name_that_names_no_app_is_told_how_to_write_one(folder: Path, spec: str) -> None:
    with pytest.raises(AppInvalidError) as refused:
        load(spec)
    assert refused.value.code == "app.invalid"


@pytest.mark.parametrize(
    ("spec", "text", "told"),
    [
        ("absent:app", "", "There is no module absent in"),
        ("broken:app", "import nowhere_to_be_found\n", "No module named 'nowhere_to_be_found'"),
        ("broken:app", "app = (\n", "broken.py, line 1"),
        ("broken:app", "\n\nraise RuntimeError('no money')\n", "RuntimeError: no money"),
        ("broken:app", "import sys; sys.exit(3)\n", "SystemExit: 3"),
        ("broken:app", "apple = 1\n", "broken:app is nothing, not a waystation.App"),
        ("broken:app", "app = 1\n", "broken:app is a int, not a waystation.App"),
        (
            "broken:app",
            "from waystation import App\napp = App()\napp.pipeline('refund', [])\n",
            "Pipeline refund has 0 steps; it can have 1 to 1000. (",
        ),
        (
            "broken:app",
            "from waystation import App\napp = App()\napp.pipeline('refund', [])\n",
            "broken.py, line 3)",
        ),
        (
            "broken:app",
            (
                "from waystation import App\napp = App()\n"
                "@app.step('a')\nasync def a(ctx, given: 'Nowhere'): ...\n"
            ),
            "annotations of step a",
        ),
    ],
)
def test_an_app_that_cannot_be_loaded_says_why(
    folder: Path, spec: str, text: str, told: str
) -> None:
    (folder / "broken.py").write_text(text)
    with pytest.raises(AppInvalidError) as refused:
        load(spec)
    assert told in str(refused.value)


async def test_a_change_of_any_of_its_files_is_taken_in(folder: Path) -> None:
    files = AppFiles("shop:app")
    old = files.app
    assert files.files == [folder / "shop.py", folder / "shop_prices.py"]
    assert not files.changed()

    write(folder / "shop_prices.py", "PRICE = 2\n")
    assert files.changed()
    assert files.reload()
    assert await price_of(files.app) == b"2"
    # Steps that run end with the code they began with.
    assert await price_of(old) == b"1"
    assert not files.changed()


async def test_two_changes_in_one_second_are_two_changes(folder: Path) -> None:
    files = AppFiles("shop:app")
    for price in range(2, 6):
        write(folder / "shop_prices.py", f"PRICE = {price}\n")
        assert files.changed()
        assert files.reload()
        assert await price_of(files.app) == str(price).encode()
    assert not list(folder.rglob("*.pyc"))


async def test_broken_code_leaves_the_old_code_and_its_repair_is_noticed(folder: Path) -> None:
    files = AppFiles("shop:app")
    old, modules = files.app, {name: sys.modules[name] for name in ("shop", "shop_prices")}

    write(folder / "shop_prices.py", "PRICE = = 2\n")
    assert files.changed()
    assert not files.reload()
    assert files.app is old
    assert await price_of(files.app) == b"1"
    assert {name: sys.modules[name] for name in modules} == modules
    # It is told once, not with every look.
    assert not files.changed()

    write(folder / "shop_prices.py", "PRICE = 3\n", later_ns=2)
    assert files.changed()
    assert files.reload()
    assert await price_of(files.app) == b"3"


async def test_a_new_file_at_fault_is_watched(folder: Path) -> None:
    files = AppFiles("shop:app")
    (folder / "shop_taxes.py").write_text("TAX = 1 / 0\n")
    write(folder / "shop.py", SHOP.replace("= App()", "= App()\nimport shop_taxes"))
    assert files.changed()
    assert not files.reload()
    assert folder / "shop_taxes.py" in files.files

    write(folder / "shop_taxes.py", "TAX = 1\n")
    assert files.changed()
    assert files.reload()
    assert await price_of(files.app) == b"1"


async def test_a_file_that_is_gone_and_comes_back_is_a_change(folder: Path) -> None:
    files = AppFiles("shop:app")
    (folder / "shop_prices.py").unlink()
    assert files.changed()
    assert not files.reload()
    assert not files.changed()
    (folder / "shop_prices.py").write_text("PRICE = 9\n")
    assert files.changed()
    assert files.reload()
    assert await price_of(files.app) == b"9"


async def test_pipelines_of_a_file_are_read_again(folder: Path) -> None:
    (folder / "pipes.json").write_text('{"name": "give", "steps": ["shop/price"]}')
    write(folder / "shop.py", SHOP + "app.pipelines_of('pipes.json')\n")
    files = AppFiles("shop:app")
    assert [each.name for each in files.app.pipelines] == ["sell", "give"]
    write(folder / "pipes.json", '{"name": "lend", "steps": ["shop/price"]}')
    assert files.changed()
    assert files.reload()
    assert [each.name for each in files.app.pipelines] == ["sell", "lend"]


async def test_code_of_others_is_left_alone(folder: Path) -> None:
    others = folder / ".venv" / "lib" / "site-packages"
    others.mkdir(parents=True)
    (others / "shop_prices.py").write_text("PRICE = 4\n")
    (folder / "shop_prices.py").unlink()
    sys.path.insert(0, str(others))
    files = AppFiles("shop:app")
    theirs, ours = sys.modules["shop_prices"], sys.modules["waystation"]
    assert files.files == [folder / "shop.py"]
    assert files.reload()
    assert sys.modules["shop_prices"] is theirs
    assert sys.modules["waystation"] is ours


async def test_an_app_in_a_package_is_loaded_anew_with_all_of_it(folder: Path) -> None:
    package = folder / "store_front"
    (package / "parts").mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "parts" / "__init__.py").touch()
    (package / "parts" / "prices.py").write_text("PRICE = 5\n")
    (package / "main.py").write_text(SHOP.replace("shop_prices", "store_front.parts.prices"))
    files = AppFiles("store_front.main:app")
    assert await price_of(files.app) == b"5"
    write(package / "parts" / "prices.py", "PRICE = 6\n")
    assert files.changed()
    assert files.reload()
    assert await price_of(files.app) == b"6"


async def test_whoever_watches_is_given_each_app_that_could_be_loaded(folder: Path) -> None:
    files = AppFiles("shop:app")
    apps: asyncio.Queue[App] = asyncio.Queue()
    watching = asyncio.ensure_future(files.watch(apps.put_nowait))
    try:
        write(folder / "shop_prices.py", "PRICE = 7\n")
        async with asyncio.timeout(20):
            assert await price_of(await apps.get()) == b"7"
    finally:
        watching.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watching
