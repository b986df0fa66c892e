"""Results on five characters of Shakespeare's roles: their data can be made from the package."""

import json
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="the extra 'sim' is not installed")
parquet = pytest.importorskip("pyarrow.parquet", reason="the extra 'sim' is not installed")

from fedcohort.experiments import read_experiment
from fedcohort.experiments.own_code import check_parts, load_data
from fedcohort.simulation import FederatedData
from fedcohort.simulation.data.text import shakespeare_roles

RESULTS = Path(__file__).parents[2] / "results"


@pytest.mark.parametrize(
    ("folder", "file"), [("roles", "again.toml"), ("regression", "experiment.toml")]
)
def test_the_clients_of_the_results_are_made_from_the_embedded_roles(
    folder: str, file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDCOHORT_DATA", str(tmp_path))
    (tmp_path / "shakespeare").mkdir()
    (tmp_path / "shakespeare" / "roles.json").write_text(json.dumps(dict(shakespeare_roles())))
    experiment = read_experiment(RESULTS / folder / file)

    check_parts(experiment, RESULTS / folder)
    data = load_data(experiment.panels[0].data.dataset, RESULTS / folder)

    assert isinstance(data, FederatedData)
    shown = parquet.read_table(RESULTS / folder / "federations.parquet").to_pydict()
    counts = np.zeros((254, 37), dtype=np.int64)
    for seed, client, label, n in zip(
        shown["seed"], shown["client"], shown["class"], shown["samples"], strict=True
    ):
        if seed == 0:
            counts[client, label] += n
    assert (data.class_counts() == counts).all()
