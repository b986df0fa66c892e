"""The site, built once for all tests."""

import fcntl
import os
import subprocess
import sys

import pytest

from built_site import ROOT, Site


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    """Build with warnings as errors; workers share what the first of them built."""
    for module in ("furo", "myst_parser", "sphinx_copybutton", "torch", "matplotlib", "flwr"):
        pytest.importorskip(module, reason="the extras 'docs' and 'all' are not installed")
    home = tmp_path_factory.getbasetemp()
    # Each worker of pytest-xdist has a folder of its own in the folder that they share.
    home = home.parent if "PYTEST_XDIST_WORKER" in os.environ else home
    with (home / "site.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (home / "site" / "objects.inv").exists():
            options = ["-E", "-W", "--keep-going", "-q", "-d", str(home / "doctrees")]
            command = [sys.executable, "-m", "sphinx", *options, "docs", str(home / "site")]
            built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
            assert (built.returncode, built.stderr) == (0, ""), built.stderr
    return Site.at(home / "site")
