"""A virtual environment for every peer, made once."""

from __future__ import annotations

import subprocess
import sys
import venv
from pathlib import Path

from peers.peer_list import Peer

REQUIREMENTS = Path(__file__).parent / "requirements"
#: Seconds after which an installation has failed.
PATIENCE = 600


class NotInstalledError(Exception):
    """A peer could not be installed; the message says why."""


def python_of(peer: Peer, folder: Path) -> Path:
    """Return the interpreter that has the peer, installing it where that was not done yet.

    ``NAME.txt`` holds pinned versions; what is in ``NAME-no-deps.txt`` is installed without what
    it asks for. A stamp with both lists says that the environment is complete.
    """
    if not peer.own_environment:
        return Path(sys.executable)
    home = folder / peer.name
    python, stamp = home / "bin" / "python", home / ".ready"
    files = {option: REQUIREMENTS / f"{peer.name}{option}.txt" for option in ("", "-no-deps")}
    texts = [file.read_text() for file in files.values() if file.exists()]
    wanted = "\n".join(line for text in texts for line in text.splitlines() if "==" in line)
    if stamp.exists() and stamp.read_text() == wanted:
        return python
    venv.create(home, clear=True, symlinks=True, with_pip=True)
    for option, file in files.items():
        if file.exists():
            _install(python, ["--no-deps"] if option else [], file)
    stamp.write_text(wanted)
    return python


def _install(python: Path, options: list[str], file: Path) -> None:
    command = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    try:
        result = subprocess.run(
            [*command, *options, "--requirement", str(file)],
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise NotInstalledError(f"pip did not finish within {PATIENCE} s") from None
    if result.returncode:
        errors = [line for line in result.stderr.splitlines() if line.startswith("ERROR")]
        raise NotInstalledError((errors or ["pip failed"])[-1].removeprefix("ERROR: "))
