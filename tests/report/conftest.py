"""Tiny runs that reports are made of; each is made once and never changed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from small_runs import DATA, small_run

if TYPE_CHECKING:
    from fedcohort.experiments import Results

#: A label that would end the page's script, close an attribute and be read as markup.
EVIL = "</script><b>x</b> & \"'$y$ %{x} {}"
TRAINING = "[training]\nsteps = 4\nbatch_size = 10\nlr = 0.1\n"
SHARED = f"""
rounds = 12
seeds = [0, 1]
cohort_size = 3
[data]
dataset = "digits"
partition = "dirichlet"
alpha = 0.01
sizes = [[5, 20], [5, 40]]
{TRAINING}
[server]
oracle_every = 3
rows_every = 3
[[design]]
recipe = "multinomial"
"""
TWO_PANELS = f"""
title = "Two panels"
{SHARED}
[[design]]
recipe = "size"
[[design]]
recipe = "similarity"
[[design]]
recipe = "similarity"
measure = "l2"
[[panel]]
label = "alpha = 0.01"
[[panel]]
label = "alpha = 10"
data.alpha = 10.0
"""
ONE_SEED = f"""
title = '''{EVIL}'''
rounds = 8
cohort_size = 3
{DATA}
[training]
steps = 2
lr = [0.01, 0.1]
[[design]]
recipe = "multinomial"
label = '''_{EVIL}'''
[[design]]
recipe = "similarity"
"""
PARTITION = 'rounds = 0\n[data]\ndataset = "digits"\npartition = "iid"\nn_clients = 4\n'


@pytest.fixture(scope="session")
def make_run(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Return what makes a run folder of an experiment file's text; it may stop early."""
    pytest.importorskip("torch", reason="the extra 'sim' is not installed")

    def make(name: str, text: str, *, stop_after: int | None = None) -> Path:
        home = tmp_path_factory.mktemp(name)
        return small_run(home, text, rounds=stop_after, name=name).rename(home / name)

    return make


@pytest.fixture(scope="session")
def two_panels(make_run: Callable[..., Path]) -> Results:
    """Two panels of unbalanced clients, two seeds, four designs, measured against all clients."""
    return read(make_run("two", TWO_PANELS))


@pytest.fixture(scope="session")
def one_seed(make_run: Callable[..., Path]) -> Results:
    """One panel, one seed, a grid, equal clients; title and a label are hostile."""
    return read(make_run("one", ONE_SEED))


@pytest.fixture(scope="session")
def partition(make_run: Callable[..., Path]) -> Results:
    """Nothing but a federation."""
    return read(make_run("partition", PARTITION))


@pytest.fixture(scope="session")
def unfinished(make_run: Callable[..., Path]) -> Results:
    """Stopped after 5 of 12 rounds."""
    return read(make_run("unfinished", SHARED, stop_after=5))


def read(path: Path) -> Results:
    from fedcohort.experiments import read_results

    return read_results(path)
