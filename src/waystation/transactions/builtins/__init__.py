"""Steps that come with us, one file each; `util/…` is their part of the names.

Those that DATP has keep its names and options. What was wrong there is mended: options are checked
when a pipeline is defined, a delay never holds a worker, a switch that is false does not open.
"""

from __future__ import annotations

from waystation.transactions.builtins import (
    checkpoint,
    child,
    delay,
    fixed_reply,
    hand,
    http,
    mapping,
    parallel,
    produce,
    progress,
    publish,
    router,
    validate,
    wait,
)
from waystation.transactions.steps import Step

BUILT_IN: dict[str, Step] = {
    module.STEP.type: module.STEP
    for module in (
        *(checkpoint, child, delay, fixed_reply, hand, http, mapping, parallel, produce),
        *(progress, publish, router, validate, wait),
    )
}

__all__ = ["BUILT_IN"]
