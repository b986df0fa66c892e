"""``fedcohort doctor``."""

import json
import platform
import sys
from importlib.metadata import PackageNotFoundError, version
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
        "shakespeare": True,
        "mnist": True,
        "fashion-mnist": False,
        "cifar10": False,
    }


def found_here(monkeypatch: pytest.MonkeyPatch, *requirements: str) -> None:
    """Let the package require these, and nothing of the simulator be there."""
    monkeypatch.setattr(doctor, "requires", lambda name: list(requirements))
    monkeypatch.setattr(doctor, "find_spec", lambda name: None)
    monkeypatch.setitem(sys.modules, "fedcohort.simulation.data.datasets", None)


def test_what_is_missing_comes_with_the_command_that_installs_it(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    needs = ("numpy>=2.0", 'no-such-package>=1; extra == "sim"', 'x; extra == "dev"')
    found_here(monkeypatch, *needs)

    result = run(capsys, "doctor")

    assert result.code == 0
    assert "no-such-package  missing  sim" in result.out
    assert "what is missing comes with: pip install 'fedcohort[sim]'" in result.out
    assert "device: none (PyTorch is not installed)" in result.out
    assert "data folder" not in result.out


def test_a_release_that_is_too_old_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    found_here(monkeypatch, 'numpy>=1000.1; extra == "sim"', 'scipy>=1.2; extra == "report"')

    lines = run(capsys, "doctor").out.splitlines()

    (numpy,) = [line for line in lines if line.startswith("numpy")]
    assert f"{version('numpy')}, too old: needs 1000.1" in numpy
    assert "what is missing comes with: pip install 'fedcohort[sim]'" in lines
    assert not any("needs 1.2" in line for line in lines)


def test_a_torch_that_cannot_be_loaded_is_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)  # importing it is an ImportError
    monkeypatch.setitem(sys.modules, "fedcohort.simulation.data.datasets", None)
    monkeypatch.setattr(doctor, "find_spec", lambda name: name)

    result = run(capsys, "doctor")

    assert result.code == 0
    assert "device: none (PyTorch cannot be loaded: " in result.out


def test_a_checkout_that_was_never_installed_is_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    def unknown(name: str) -> list[str]:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(doctor, "requires", unknown)

    assert run(capsys, "doctor").code == 0


def test_trackers_are_those_that_runs_can_have(capsys: Capture) -> None:
    pytest.importorskip("torch", reason="the extra 'sim' is not installed")
    from fedcohort.experiments.trackers import TRACKERS

    assert list(TRACKERS) == list(doctor.TRACKER_PACKAGES)
    assert list(json.loads(run(capsys, "doctor", "--json").out)["trackers"]) == list(TRACKERS)
