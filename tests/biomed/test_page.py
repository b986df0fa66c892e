"""The page on Fed-BioMed does what it says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from biomed.in_process import InProcessNodes
from documented_blocks import blocks_of
from fedcohort.fedbiomed import CohortStrategy

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "fedbiomed.md"
HERE = "not run: by make test, but by make test-frameworks"


def test_the_block_of_the_page_runs(
    nodes: InProcessNodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    (block,) = [each for each in blocks_of(PAGE.read_text()) if each.title == HERE]

    exec(block.text, names)

    assert isinstance(names["experiment"].strategy(), CohortStrategy)
