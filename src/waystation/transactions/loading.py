"""Loads a user's app from `module:name`, and again when one of its files changes.

Loading anew imports the modules below the app's folder again, in this process: API and store stay
up, and steps that run end with the code they began with. Code that is broken changes nothing: the
old app stays, and the reason is told.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

from waystation.errors import AppInvalidError, WaystationError
from waystation.runtime.logging import logger
from waystation.transactions.app import App

_log = logger("app")

_LOOK_SECONDS = 0.5
#: Folders below the app's in which others' code is.
_NOT_USERS = ("site-packages", "dist-packages", "node_modules")

#: Where our own code is.
_OURS = Path(__file__).parents[1]

#: Files with what tells one content from the next.
_Stamps = dict[Path, tuple[int, int]]


def load(spec: str) -> App:
    """The app that `module:name` names; AppInvalidError says why there is none."""
    module_name, colon, name = spec.partition(":")
    if not colon or not all(part.isidentifier() for part in module_name.split(".")):
        raise AppInvalidError(
            f"{spec!r} does not name an app.", hint="Write module:name, as in shop:app."
        )
    # As `python -m` does: what lies where we were started can be imported.
    here = str(Path.cwd())
    if here not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:
        raise AppInvalidError(_import_problem(module_name, error)) from error
    app = getattr(module, name, None)
    if not isinstance(app, App):
        what = "nothing" if app is None else f"a {type(app).__name__}"
        raise AppInvalidError(f"{spec} is {what}, not a waystation.App.")
    try:
        app.book()
    except WaystationError as error:
        raise AppInvalidError(f"{spec}: {error.message}", hint=error.hint) from error
    return app


class AppFiles:
    """The app of `dev`: loaded once, and again after every change of its files."""

    def __init__(self, spec: str) -> None:
        self._spec = spec
        with _no_bytecode():
            self.app = load(spec)
        self._folder = _folder_of(spec)
        self._stamps = _stamps(self._files())

    @property
    def files(self) -> list[Path]:
        """What is looked at."""
        return sorted(self._stamps)

    async def watch(self, on_change: Callable[[App], None]) -> None:
        """Looks at the files for ever; hands over each app that could be loaded."""
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            if self.changed() and self.reload():
                on_change(self.app)

    def changed(self) -> bool:
        """Whether a file is another than when it was last loaded."""
        return _stamps(self._stamps) != self._stamps

    def reload(self) -> bool:
        """Loads the app anew; false where it could not be, and the old one stays."""
        # Before it is read: what is saved while it is being loaded is a change.
        before = _stamps(self._stamps)
        old = self._modules()
        for name in old:
            del sys.modules[name]
        importlib.invalidate_caches()
        try:
            with _no_bytecode():
                self.app = load(self._spec)
        except AppInvalidError as error:
            for name in self._modules():
                del sys.modules[name]
            sys.modules.update(old)
            # Also the file at fault, which may be new: its repair is the change to wait for.
            self._stamps = _stamps(self._blamed(error)) | before
            _log.error("the app was not loaded anew, the old code stays", problem=str(error))
            return False
        self._stamps = _stamps(self._files()) | before
        _log.info("app loaded anew", app=self._spec, steps=len(self.app.book().types))
        return True

    def _modules(self) -> dict[str, ModuleType]:
        """The loaded modules that are the user's own."""
        return {
            name: module
            for name, module in list(sys.modules.items())
            if self._is_own(name, getattr(module, "__file__", None))
        }

    def _is_own(self, name: str, file: str | None) -> bool:
        if file is None or name == "__main__" or name.partition(".")[0] == "waystation":
            return False
        return self._is_below(Path(file))

    def _is_below(self, file: Path) -> bool:
        try:
            parts = file.resolve().relative_to(self._folder).parts
        except ValueError:
            return False
        return not any(part in _NOT_USERS or part.startswith(".") for part in parts)

    def _files(self) -> list[Path]:
        own = (getattr(module, "__file__", None) for module in self._modules().values())
        return [*(Path(file) for file in own if file), *self.app.files]

    def _blamed(self, error: BaseException) -> Iterator[Path]:
        cause = error.__cause__
        if isinstance(cause, SyntaxError) and cause.filename:
            yield Path(cause.filename)
        for frame, _ in traceback.walk_tb(cause.__traceback__ if cause else None):
            file = Path(frame.f_code.co_filename)
            if self._is_below(file):
                yield file


def _folder_of(spec: str) -> Path:
    """The folder that the app's outermost package or module lies in."""
    outermost = sys.modules[spec.partition(":")[0].partition(".")[0]]
    file = outermost.__file__
    if file is None:  # A package without `__init__.py`.
        return Path(next(iter(outermost.__path__))).resolve().parent
    found = Path(file).resolve()
    return found.parent.parent if found.name == "__init__.py" else found.parent


def _stamps(files: Iterable[Path]) -> _Stamps:
    found: _Stamps = {}
    for file in files:
        try:
            stat = os.stat(file)
        except OSError:
            found[file] = (0, 0)  # Gone; to come back is a change.
        else:
            found[file] = (stat.st_mtime_ns, stat.st_size)
    return found


@contextmanager
def _no_bytecode() -> Iterator[None]:
    """Keeps Python from writing what it compiled.

    It knows a source by its second and size: of two changes in one second it might miss one.
    """
    before, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    try:
        yield
    finally:
        sys.dont_write_bytecode = before


def _import_problem(module: str, error: BaseException) -> str:
    if isinstance(error, ModuleNotFoundError) and error.name == module:
        return f"There is no module {module} in {Path.cwd()}, nor among those installed."
    if isinstance(error, SyntaxError):
        return f"{error.filename}, line {error.lineno}: {error.msg}."
    frames = list(traceback.extract_tb(error.__traceback__))
    told = f"{type(error).__name__}: {error}"
    if isinstance(error, WaystationError):
        # Raised by us, for what stands where we were called.
        told, frames = str(error), [each for each in frames if not _is_ours(each.filename)]
    where = f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""
    return f"Module {module} cannot be imported: {told}{where}{'.' * (told[-1:] != '.')}"


def _is_ours(file: str) -> bool:
    return Path(file).is_relative_to(_OURS)
