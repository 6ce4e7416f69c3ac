"""Definitions: what a pipeline may be, what makes its version, files, and who serves its steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from waystation import App
from waystation.errors import PipelineInvalidError
from waystation.transactions.pipeline import (
    DEFINITION_BYTES_MAX,
    STEPS_MAX,
    StepUse,
    decode,
    define,
    read_pipelines,
)


def test_the_same_content_is_the_same_version_however_it_was_written() -> None:
    one = define("refund", ["a/b", ("util/delay", {"min": 1, "max": 2})])
    two = define(
        "refund", [StepUse("a/b"), {"type": "util/delay", "options": {"max": 2, "min": 1}}]
    )
    assert one == two
    assert one.version == two.version == decode(one.encoded).version
    assert one.encoded == two.encoded


def test_the_version_of_a_definition_never_changes_with_a_release() -> None:
    # Golden: running transactions and the archive know their pipelines by it.
    pipeline = define("refund", ["refund/approve", "refund/pay"])
    assert pipeline.encoded == (
        b'{"name":"refund","steps":[{"type":"refund/approve"},{"type":"refund/pay"}]}'
    )
    assert pipeline.version == "809813447c19444d"


@pytest.mark.parametrize(
    "other",
    [
        define("refunds", ["a"]),
        define("refund", ["a"], group="gpu"),
        define("refund", ["a", "a"]),
        define("refund", [("a", {"n": 1})]),
        define("refund", ["a"], description="of a purchase"),
        define("refund", ["a"], startable=False),
        define("refund", ["a"], snapshot=True),
        define("refund", ["a"], record="headers"),
        define("refund", ["a"], redact=["/card"]),
    ],
)
def test_another_content_is_another_version(other: Any) -> None:
    assert other.version != define("refund", ["a"]).version
    assert decode(other.encoded) == other


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("refund", []), "has 0 steps"),
        (("refund", ["a"] * (STEPS_MAX + 1)), "has 1001 steps"),
        (("refund", "abc"), "are a list"),
        (("Refund", ["a"]), "is not a valid name"),
        (("refund", ["a b"]), "Step 1 of pipeline refund: 'a b' is not a type of step"),
        (("refund", ["a", 7]), "Step 2 of pipeline refund"),
        (("refund", [("a", [])]), "Step 1 of pipeline refund"),
        (("refund", [{"type": "a", "min": 5}]), "unknown field `min`"),
        (("refund", [{"options": {}}]), "required field `type`"),
        (("refund", [("a", {"n": {1, 2}.__iter__()})]), "Step 1 of pipeline refund"),
        (("refund", [("a", {"n": "x" * DEFINITION_BYTES_MAX})]), "bytes"),
    ],
)
def test_what_is_no_pipeline_is_refused_with_the_place_of_the_fault(
    arguments: Any, told: str
) -> None:
    with pytest.raises(PipelineInvalidError) as refused:
        define(*arguments)
    assert told in refused.value.message
    assert refused.value.code == "pipeline.invalid"


@pytest.mark.parametrize(
    ("options", "field"), [({"record": "some"}, "record"), ({"redact": ["card"]}, "redact")]
)
def test_what_is_recorded_is_said_in_words_that_are_known(options: Any, field: str) -> None:
    with pytest.raises(PipelineInvalidError) as refused:
        define("refund", ["a"], **options)
    assert refused.value.field == field


def test_a_node_group_has_a_name() -> None:
    with pytest.raises(PipelineInvalidError, match="group"):
        define("refund", ["a"], group="a:b")


def test_options_keep_numbers_as_they_are() -> None:
    options = {"big": 12345678901234567890, "half": 0.5, "one": 1.0, "none": None, "list": []}
    pipeline = define("refund", [("a", options)])
    (use,) = decode(pipeline.encoded).steps
    assert use.options == options
    assert isinstance(use.options["one"], float)


# -- Files -----------------------------------------------------------------------------------


def test_a_file_has_one_pipeline_or_several(tmp_path: Path) -> None:
    one = tmp_path / "refund.json"
    one.write_text('{"name": "refund", "steps": ["refund/approve", "refund/pay"]}')
    several = tmp_path / "several.json"
    several.write_text(
        '[{"name": "a", "steps": [{"type": "util/delay", "options": {"min": 5}}], "group": "gpu"},'
        ' {"name": "b", "steps": ["x"], "startable": false, "description": "of a"}]'
    )
    app = App()
    (refund,) = app.pipelines_of(one)
    assert refund == define("refund", ["refund/approve", "refund/pay"])
    a, b = app.pipelines_of(str(several))
    assert a == define("a", [("util/delay", {"min": 5})], group="gpu")
    assert b == define("b", ["x"], startable=False, description="of a")
    assert app.pipelines == (refund, a, b)
    assert app.files == [one.resolve(), several.resolve()]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "Input data was truncated"),
        ("{", "truncated"),
        ("7", "Expected"),
        ('{"name": "a"}', "required field `steps`"),
        ('{"name": "a", "steps": ["x"], "nodeGroup": "b"}', "unknown field `nodeGroup`"),
        ('{"name": "a", "steps": [7]}', "$.steps[0]"),
        ('{"name": "a", "steps": []}', "has 0 steps"),
        ('[{"name": "a", "steps": ["x"]}, {"name": "b", "steps": ["util/wait"]}]', "pipeline b"),
    ],
)
def test_a_file_with_a_fault_is_told_by_its_name_and_defines_nothing(
    tmp_path: Path, text: str, told: str
) -> None:
    file = tmp_path / "broken.json"
    file.write_text(text)
    app = App()
    with pytest.raises(PipelineInvalidError) as refused:
        app.pipelines_of(file)
    assert str(file) in refused.value.message
    assert told in refused.value.message
    assert app.pipelines == ()


def test_a_file_that_is_not_there_or_not_text_is_told(tmp_path: Path) -> None:
    with pytest.raises(PipelineInvalidError, match=r"absent\.json cannot be read: No such file"):
        read_pipelines(tmp_path / "absent.json")
    (tmp_path / "binary.json").write_bytes(b'{"name": "\xff"}')
    with pytest.raises(PipelineInvalidError, match=r"binary\.json"):
        read_pipelines(tmp_path / "binary.json")


# -- App -------------------------------------------------------------------------------------


def test_a_pipeline_of_an_app_is_defined_once(tmp_path: Path) -> None:
    app = App()
    app.pipeline("refund", ["a"])
    with pytest.raises(PipelineInvalidError, match="two pipelines refund"):
        app.pipeline("refund", ["b"])
    file = tmp_path / "refund.json"
    new, known = {"name": "new", "steps": ["c"]}, {"name": "refund", "steps": ["c"]}
    file.write_bytes(msgspec.json.encode([new, known]))
    with pytest.raises(PipelineInvalidError, match="two pipelines refund"):
        app.pipelines_of(file)
    assert [each.steps[0].type for each in app.pipelines] == ["a"]


def test_a_step_that_nobody_serves_is_told_by_name() -> None:
    app = App()
    app.step("refund/approve")(lambda ctx: None)
    steps = ["refund/approve", "util/checkpoint", "refund/pay"]
    refund = app.pipeline("refund", steps, group="gpu")
    assert refund.unserved(app.book().types) == [
        "Nobody in node group gpu serves refund/pay, step 3 of pipeline refund."
    ]
    assert repr(app) == "<App [1 steps, 1 pipelines]>"


def test_define_option_that_is_not_finite_is_refused_with_its_path() -> None:
    with pytest.raises(PipelineInvalidError) as refused:
        define("p", ["a", ("b", {"rates": [float("nan")]})])
    assert refused.value.field == "steps[1].options.rates[0]"
