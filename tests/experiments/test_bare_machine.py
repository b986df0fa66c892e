"""``fedcohort run`` on a machine with little: PyTorch, and what the wheelhouse brings."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="the extra 'sim' is not installed")

from packaging.requirements import Requirement

from requirement_closure import ROOT, closure, declared
from small_runs import SMALL, write

#: Runs the command line where only the packages that are given can be imported.
PROGRAM = """
import sys
from importlib.metadata import packages_distributions

known, homes = set(sys.argv.pop(1).split(",")), packages_distributions()

class Missing:
    def find_spec(self, name, path=None, target=None):
        owners = {each.lower().replace("_", "-") for each in homes.get(name, [])}
        if owners and not owners & known:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
from fedcohort.cli import main
sys.exit(main())
"""
#: What docs/how-to/bare-machine.md installs, beside PyTorch.
PAGE = ROOT / "docs" / "how-to" / "bare-machine.md"
NEEDED = ("fedcohort", "pyarrow", "scikit-learn")


def test_the_page_installs_what_a_run_needs(tmp_path: Path) -> None:
    packages = closure([*declared(), *map(Requirement, ("torch", *NEEDED[1:]))])

    command = ["run", write(tmp_path, SMALL), "--out", tmp_path / "out", "--device", "cpu"]
    given = ",".join([*packages, "fedcohort"])
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, given, *map(str, command)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith(f"run folder: {tmp_path / 'out'}\n")
    assert f"--find-links wheelhouse {' '.join(NEEDED)}\n" in PAGE.read_text(encoding="utf-8")
