"""The page on FLARE does what it says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("nvflare", reason="the extra 'nvflare' is not installed")

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
    assert CohortController(**names["config"]["args"]).num_rounds == 100
    assert f'"{SIZE_TASK}"' in text
