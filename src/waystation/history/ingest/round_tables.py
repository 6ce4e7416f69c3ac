"""The tables of a round of ingest, each in the version that the round was planned from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from waystation.history.decoders.registry import decoder_for
from waystation.history.ingest.task import TaskReport
from waystation.history.lake.table import Lake, LakeTable, TableOffset
from waystation.history.offsets import parse_key


class RoundTables:
    """Marks and commits of all tables that some partitions feed."""

    def __init__(self, lake: Lake, dataset: str, keys: Iterable[str]) -> None:
        self._dataset = dataset
        self._tables: dict[str, LakeTable] = {}
        #: Partition -> table -> how far that has come.
        self._marks: dict[str, dict[str, TableOffset]] = {}
        for key in keys:
            decoder = decoder_for(parse_key(key)[0])
            assert decoder is not None, "only logs with a decoder are looked at"
            marks = self._marks.setdefault(key, {})
            spec = decoder.table
            if spec.name not in self._tables:
                self._tables[spec.name] = lake.open(spec)
            marks[spec.name] = self._tables[spec.name].offset(f"{dataset}/{key}")

    def of(self, key: str) -> list[tuple[LakeTable, TableOffset]]:
        """The tables that a partition feeds, each with its own mark; the first has all entries."""
        return [(self._tables[name], mark) for name, mark in self._marks[key].items()]

    def mark(self, key: str) -> TableOffset:
        """How far all tables of a partition have come."""
        return min(self._marks[key].values(), key=lambda mark: mark.offset)

    def reached(self, key: str) -> int:
        """How far any table of a partition has come."""
        return max(mark.offset for mark in self._marks[key].values())

    def wanted(self) -> dict[str, dict[str, int]]:
        """The first offset that each table lacks of each partition."""
        return {
            key: {name: mark.offset for name, mark in marks.items()}
            for key, marks in self._marks.items()
        }

    def commit(self, reports: Sequence[TaskReport], reached: Mapping[str, TableOffset]) -> None:
        """Brings every table up to the new marks, one after the other."""
        for name, table in self._tables.items():
            behind = {
                f"{self._dataset}/{key}": mark
                for key, mark in reached.items()
                if name in self._marks[key] and self._marks[key][name].offset < mark.offset
            }
            files = [file for report in reports for file in report.files.get(name, ())]
            if behind:
                table.commit(files, behind)
