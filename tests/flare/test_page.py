"""The page on FLARE does what it says."""

from __future__ import annotations

from pathlib import Path
from textwrap import indent
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("nvflare", reason="the extra 'nvflare' is not installed")

from nvflare.app_common.abstract.fl_model import FLModel

from documented_blocks import blocks_of
from fedcohort.nvflare import SIZE_TASK, CohortController, CohortSelection

DOCS = Path(__file__).parents[2] / "docs" / "how-to"
HERE = "not run: by make test, but by make test-frameworks"


def test_the_blocks_of_the_page_run_in_its_order() -> None:
    text = (DOCS / "nvflare.md").read_text(encoding="utf-8")
    names: dict[str, Any] = {}
    blocks = [block for block in blocks_of(text) if block.title == HERE]
    for block in blocks:
        exec(block.text, names)

    assert len(blocks) == 3
    assert isinstance(names["controller"], CohortSelection)
    assert CohortController(**names["config"]["args"]).max_norm == 100
    assert {"Limits", "SizeClustered"} <= names.keys()


def test_the_lines_for_a_clients_script_tell_the_number_of_samples() -> None:
    page = blocks_of((DOCS / "nvflare.md").read_text(encoding="utf-8"))
    (part,) = [block.text for block in page if "get_task_name" in block.text]
    sent: list[FLModel] = []
    flare = SimpleNamespace(get_task_name=lambda: SIZE_TASK, send=sent.append, FLModel=FLModel)
    exec(f"for _ in range(1):\n{indent(part, '    ')}", {"flare": flare, "data": range(30)})

    assert [model.metrics for model in sent] == [{SIZE_TASK: 30}]
