"""Number of examples of a model test, and a report of how many ran.

The number of examples bounds a model test, never the time: a busy machine takes longer and tests
the same. EXAMPLES=2000 tests more.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

#: Without EXAMPLES: as many as take about five seconds on two idle processors.
EXAMPLES_USUALLY = 30
EXAMPLES = int(os.environ.get("EXAMPLES", EXAMPLES_USUALLY))
#: Property of a test report: the number of examples that ran.
RAN = "model_examples"

RecordProperty = Callable[[str, object], None]


def example_settings(*, steps: int = 50, shrink: bool = True) -> settings:
    """Return the settings of a model test. Shrinking takes minutes, so EXAMPLES must ask for it."""
    phases = [Phase.explicit, Phase.reuse, Phase.generate, Phase.target, Phase.explain]
    if shrink and EXAMPLES > EXAMPLES_USUALLY:
        phases.append(Phase.shrink)
    return settings(
        max_examples=EXAMPLES,
        stateful_step_count=steps,
        deadline=None,
        print_blob=True,
        phases=phases,
        suppress_health_check=list(HealthCheck),
    )


def run_machine(
    machine: type[RuleBasedStateMachine], record_property: RecordProperty, *, steps: int
) -> None:
    """Run a state machine with EXAMPLES examples and report how many ran."""
    ran = 0

    class Counted(machine):  # type: ignore[misc, valid-type]
        def __init__(self) -> None:
            nonlocal ran
            ran += 1
            super().__init__()

    Counted.__name__ = Counted.__qualname__ = machine.__name__
    try:
        run_state_machine_as_test(Counted, settings=example_settings(steps=steps))
    finally:
        record_property(RAN, ran)
    assert ran >= EXAMPLES
