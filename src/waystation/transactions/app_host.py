"""Runs an app in this process: its pipelines are defined, its steps are served.

The pipelines of an app belong to project `default`. An app that has changed takes the place of the
one before: steps that run end with the old code.
"""

from __future__ import annotations

import asyncio

from waystation import __version__
from waystation.errors import WaystationError
from waystation.runtime.clock import Clock
from waystation.runtime.logging import logger
from waystation.store.keys import DEFAULT_PROJECT
from waystation.store.opening import OpenStore
from waystation.transactions.app import App
from waystation.transactions.cells import Terms
from waystation.transactions.limits import Limits
from waystation.transactions.loader import Loader
from waystation.transactions.loading import AppFiles, load
from waystation.transactions.nodes import Nodes, node_record
from waystation.transactions.pipelines import Pipelines
from waystation.transactions.services import Services
from waystation.transactions.steps import StepBook
from waystation.transactions.worker import Worker

_log = logger("app")

#: The name of the app that has no steps but our own.
BUILT_IN_APP = "built-in"


class AppHost:
    """One app at a time, from `start` to `stop`."""

    def __init__(
        self,
        opened: OpenStore,
        pipelines: Pipelines,
        nodes: Nodes,
        *,
        clock: Clock,
        node_id: str,
        terms: Terms,
        cells: int,
        group: str,
        limits: Limits,
        services: Services | None = None,
        loader: Loader | None = None,
    ) -> None:
        self._opened = opened
        self._pipelines = pipelines
        self._nodes = nodes
        self._clock = clock
        self._terms = terms
        self._cells = cells
        self._group = group
        self._limits = limits
        self._services = services
        self._loader = loader
        #: What this node is called in records, heads and journals.
        self.node_id = node_id
        self._worker: Worker | None = None
        #: The app that is to take the place of the one that runs, and who sees to it.
        self._wanted: App | None = None
        self._changing: asyncio.Task[None] | None = None
        self._watch: asyncio.Task[None] | None = None

    @property
    def healthy(self) -> bool:
        """Whether claims were answered lately."""
        return self._worker is None or self._worker.healthy

    async def start(self, app: App | str, *, reload: bool = False) -> None:
        """Defines its pipelines, tells all others what is served here, and begins to work.

        An app by its name is loaded first; and again, if so wished, whenever its files change.
        """
        files = AppFiles(app) if reload and isinstance(app, str) and app != BUILT_IN_APP else None
        app = files.app if files is not None else _loaded(app)
        book = app.book()
        await self._define(app)
        self._worker = Worker(
            self._opened.store,
            self._opened.wakeups,
            self._pipelines,
            book,
            renewer=self._opened.renewer,
            clock=self._clock,
            terms=self._terms,
            cells=self._cells,
            group=self._group,
            node=self.node_id,
            limits=self._limits,
            services=self._services,
            loader=self._loader,
            memory=self._opened.memory,
        )
        await self._worker.start()
        try:
            await self._register(book)
            await self._tell_unserved(app)
        except BaseException:
            await self.stop()
            raise
        if files is not None:
            self._watch = asyncio.get_running_loop().create_task(files.watch(self.change))

    def change(self, app: App) -> None:
        """Another app in the place of the one before, as soon as it can be."""
        self._wanted = app
        if self._changing is None or self._changing.done():
            self._changing = asyncio.get_running_loop().create_task(self._take_up())

    async def stop(self) -> None:
        """Is off the list of nodes, lets steps end, and gives back what it holds."""
        doing = [task for task in (self._changing, self._watch) if task is not None]
        for task in doing:
            task.cancel()
        await asyncio.gather(*doing, return_exceptions=True)
        await self._nodes.stop()
        if self._worker is not None:
            await self._worker.stop()

    async def _take_up(self) -> None:
        # One after the other: the last one counts, however long the one before it takes.
        while (app := self._wanted) is not None:
            self._wanted = None
            await self._change(app)

    async def _change(self, app: App) -> None:
        assert self._worker is not None, "start first"
        book = app.book()
        # The steps first: a pipeline that is new may need one that is new.
        self._worker.use(book)
        try:
            await self._register(book)
            await self._define(app)
            await self._tell_unserved(app)
        except WaystationError as error:
            _log.error("the pipelines of the app were not all defined anew", problem=str(error))

    async def _register(self, book: StepBook) -> None:
        record = node_record(self._group, self.node_id, book, version=__version__)
        await self._nodes.register(record)

    async def _define(self, app: App) -> None:
        for pipeline in app.pipelines:
            await self._pipelines.put(DEFAULT_PROJECT, pipeline)

    async def _tell_unserved(self, app: App) -> None:
        for each in await self._nodes.unserved(app.pipelines):
            # By name: another process may come that serves it, but often nobody does.
            _log.warning("a step is not served", problem=each)


def _loaded(app: App | str) -> App:
    if isinstance(app, App):
        return app
    return App() if app == BUILT_IN_APP else load(app)
