"""An ingest of a process without room on its disk, which then gets room: `URL LAKE BYTES`.

It prints the error, and the rows and lost rows of the same ingest once there is room.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.history.ingest_process import full_disk
from tests.history.local_ingest import local_ingest
from waystation.errors import HistoryError


def main() -> None:
    url, lake, room = sys.argv[1:]
    ingest = local_ingest(Path(lake), url)
    with full_disk(bytes_max=int(room)):
        try:
            ingest.run()
        except HistoryError as error:
            sys.stdout.write(f"{error.code}: {error}\n")
    done = ingest.run()
    sys.stdout.write(f"rows={done.rows} lost={done.lost_rows}\n")


if __name__ == "__main__":
    main()
