"""These tests need Fed-BioMed, which has an environment of its own; the researcher's is here."""

import atexit
import os
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from typing import Any

import pytest

if find_spec("fedbiomed") is None:
    pytest.skip("the extra 'fedbiomed' is not installed", allow_module_level=True)

#: Fed-BioMed makes the researcher's folder when it is imported.
HOME = Path(mkdtemp())
atexit.register(rmtree, HOME)
os.environ["FBM_RESEARCHER_COMPONENT_ROOT"] = str(HOME / "researcher")
os.environ["FBM_DEBUG"] = "1"  # raise errors instead of ending Python

from biomed.in_process import InProcessNodes, experiment_with


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch) -> InProcessNodes:
    """Return nodes in this process, in the place of Fed-BioMed's server."""
    return InProcessNodes.installed(monkeypatch)


@pytest.fixture
def experiment(nodes: InProcessNodes) -> Callable[..., Any]:
    """Return what makes an experiment on the nodes, given a strategy."""
    return lambda strategy, **more: experiment_with(strategy, nodes, **more)
