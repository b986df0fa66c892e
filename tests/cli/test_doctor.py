"""``fedcohort doctor``."""

import json
import platform
from importlib.metadata import version
from pathlib import Path

import pytest

from command_line import run
from fedcohort import __version__
from fedcohort.cli import doctor

Capture = pytest.CaptureFixture[str]


def test_it_says_versions_extras_device_and_data_sets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    pytest.importorskip("torch", reason="the extra 'sim' is not installed")
    monkeypatch.setenv("FEDCOHORT_DATA", str(tmp_path))
    for name in ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1"):
        path = tmp_path / "mnist" / f"{name}-ubyte.gz"
        path.parent.mkdir(exist_ok=True)
        path.touch()

    found = json.loads(run(capsys, "doctor", "--json").out)

    assert found["fedcohort"] == __version__
    assert found["python"] == platform.python_version()
    packages = {(each["name"], each["extra"]): each["version"] for each in found["packages"]}
    assert packages[("numpy", None)] == version("numpy")
    assert packages[("torch", "sim")] == version("torch")
    assert ("pytest", "dev") not in packages
    assert found["data_folder"] == str(tmp_path)
    assert found["data_sets"] == {
        "digits": True,
        "mnist": True,
        "fashion-mnist": False,
        "cifar10": False,
    }


def test_what_is_missing_comes_with_the_command_that_installs_it(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setattr(
        doctor,
        "requires",
        lambda name: ["numpy>=2.0", 'no-such-package>=1; extra == "sim"', 'x; extra == "dev"'],
    )
    monkeypatch.setattr(doctor, "find_spec", lambda name: None)

    result = run(capsys, "doctor")

    assert result.code == 0
    assert "missing: pip install 'fedcohort[sim]'" in result.out
    assert "device: none (PyTorch is not installed)" in result.out
    assert "data folder" not in result.out
