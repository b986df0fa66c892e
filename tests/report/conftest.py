"""Tiny runs that reports are made of; each is made once and never changed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from chromium import started_browser
from report.opened_page import Opened
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
#: Thirty clients, and a biased design.
BIASED = f"""
rounds = 4
cohort_size = 3
{DATA.replace("clients_per_class = 1", "clients_per_class = 3")}
{TRAINING}
[[design]]
recipe = "multinomial"
[[design]]
recipe = "size"
[[design]]
recipe = "cohort-mean"
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
def biased(make_run: Callable[..., Path]) -> Results:
    """Thirty clients, one seed, two unbiased designs and a biased one."""
    return read(make_run("biased", BIASED))


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


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with started_browser() as browser:
        yield browser


@pytest.fixture(scope="module")
def two_file(two_panels: Results, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "two.html"
    from fedcohort.report.page import write_page

    write_page([two_panels], path)
    return path


@pytest.fixture(scope="module")
def all_file(
    one_seed: Results,
    two_panels: Results,
    partition: Results,
    unfinished: Results,
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    path = tmp_path_factory.mktemp("page") / "all.html"
    from fedcohort.report.page import write_page

    write_page([one_seed, two_panels, partition, unfinished], path)
    return path


@pytest.fixture(scope="module")
def open_two(browser: Any, two_file: Path) -> Iterator[Callable[[], Opened]]:
    """Return what gives the page as it is when it is opened; to draw it anew takes seconds."""

    def fresh() -> Opened:
        return Opened(browser, two_file, viewport={"width": 1200, "height": 900})

    opened = fresh()

    def as_opened() -> Opened:
        nonlocal opened
        if not opened.restored():
            opened.context.close()
            opened = fresh()
        return opened

    yield as_opened
    opened.context.close()


@pytest.fixture
def two(open_two: Callable[[], Opened]) -> Opened:
    return open_two()
