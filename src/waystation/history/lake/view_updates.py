"""Sessions that follow a lake: before a query they update the views to its newest version.

`follow_lake` turns a session into a FollowingSession, whose `sql`, `table` and `read.table` first
check for new commits. The check costs two file look-ups per table of the lake.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from waystation.errors import HistoryError
from waystation.history.lake.table import Lake, LakeSnapshot
from waystation.runtime.logging import logger

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameReader, SparkSession

_log = logger("history")
#: Time that an update of the views waits for other threads to plan their queries.
_PLANNING_S_MAX = 1.0
_DATABASE = "waystation"


class FollowedLake:
    """The snapshot that the views of a Spark application show, and its replacement by a newer one.

    Sessions that share the views share this object. Its lock makes a thread that plans a query see
    the views of one snapshot: an update of the views waits until no other thread plans a query, and
    queries wait until an update is complete. The mutable state is the snapshot with
    its marks, the number of threads that plan, and whether a thread updates the views.
    """

    def __init__(
        self,
        snapshot: LakeSnapshot,
        show: Callable[[SparkSession, LakeSnapshot, LakeSnapshot | None], None],
    ) -> None:
        self._snapshot = snapshot
        self._marks = snapshot.commit_marks()
        self._show = show
        self._changed = threading.Condition()
        self._planning = 0
        self._is_updating = False

    @contextmanager
    def planning(self, spark: SparkSession, text: str) -> Iterator[None]:
        """Update the views; keep them as they are while the block plans a query.

        Raise the errors of `attach` if the lake cannot be read and `text` names it. A query of
        other tables does not fail because of the lake.
        """
        try:
            self._update(spark)
        except (HistoryError, OSError) as error:
            if _DATABASE in text.lower():
                raise
            _log.warning("views of the lake not updated", lake=self._snapshot.root, error=error)
        with self._changed:
            self._changed.wait_for(lambda: not self._is_updating)
            self._planning += 1
        try:
            yield
        finally:
            with self._changed:
                self._planning -= 1
                self._changed.notify_all()

    def _update(self, spark: SparkSession) -> None:
        is_own_update = False
        try:
            with self._changed:
                self._changed.wait_for(lambda: not self._is_updating)
                marks = self._snapshot.commit_marks()
                if marks == self._marks and not marks.has_later_commits:
                    return
                self._is_updating = is_own_update = True
                # A thread may plan for long, because `sql` runs a command such as `create table`.
                # Then queries read the former snapshot, which is complete, too. Ctrl-C may end this
                # wait.
                may_update = self._changed.wait_for(lambda: not self._planning, _PLANNING_S_MAX)
            if may_update:
                newest = Lake(self._snapshot.root).snapshot()
                marks = newest.commit_marks()
                newest.require()
                newest.verify_files(than=self._snapshot)
                self._show(spark, newest, self._snapshot)
                self._snapshot, self._marks = newest, marks
        finally:
            if is_own_update:
                with self._changed:
                    self._is_updating = False
                    self._changed.notify_all()


class FollowingSession:
    """Methods of a session that follows a lake. The other base class is that of the session."""

    _followed: FollowedLake

    def sql(self, sqlQuery: str, *args: Any, **more: Any) -> DataFrame:  # noqa: N803 (Spark's name)
        """Update the views and plan a query."""
        with self._followed.planning(_session(self), sqlQuery):
            return super().sql(sqlQuery, *args, **more)  # type: ignore[misc,no-any-return]

    def table(self, tableName: str) -> DataFrame:  # noqa: N803 (Spark's name)
        """Update the views and return a table."""
        with self._followed.planning(_session(self), tableName):
            return super().table(tableName)  # type: ignore[misc,no-any-return]

    @property
    def read(self) -> DataFrameReader:
        """Return a reader whose `table` updates the views."""
        reader: DataFrameReader = super().read  # type: ignore[misc]
        table = reader.table

        def newest_table(tableName: str) -> DataFrame:  # noqa: N803 (Spark's name)
            with self._followed.planning(_session(self), tableName):
                return table(tableName)

        reader.table = newest_table  # type: ignore[method-assign]
        return reader

    def newSession(self) -> SparkSession:  # noqa: N802 (Spark's name)
        """Return a new session of the application, which follows the same lake."""
        session: SparkSession = super().newSession()  # type: ignore[misc]
        follow_lake(session, self._followed)
        return session


def follow_lake(spark: SparkSession, followed: FollowedLake) -> None:
    """Let a session update its views before each query."""
    spark._followed = followed  # type: ignore[attr-defined]
    kind = type(spark)
    if not issubclass(kind, FollowingSession):
        spark.__class__ = type(kind.__name__, (FollowingSession, kind), {})


def stop_following(spark: SparkSession) -> None:
    """Leave the views of a session as they are from now on."""
    if isinstance(spark, FollowingSession):
        spark.__class__ = type(spark).__mro__[2]


def plain_sql(spark: SparkSession, statement: str) -> DataFrame:
    """Run a statement without an update of the views."""
    if isinstance(spark, FollowingSession):
        frame: DataFrame = super(FollowingSession, spark).sql(statement)  # type: ignore[misc]
        return frame
    return spark.sql(statement)


def _session(session: Any) -> SparkSession:
    spark: SparkSession = session
    return spark
