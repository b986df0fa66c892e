"""Run the notebooks and keep what they show.

``python notebooks/refresh.py`` (or ``make notebooks``) runs all of them in place, in half a minute;
``--out FOLDER`` leaves them as they are and writes what came out to the folder. Stops at the first
error.
"""

import argparse
from pathlib import Path
from tempfile import TemporaryDirectory

import nbformat
from nbclient import NotebookClient
from traitlets.config import Config

#: What a cell may take at most, in seconds.
LONGEST_CELL = 120


def refresh(notebook: Path, folder: Path) -> Path:
    """Run a notebook where it lies; write it, with its outputs, to the folder."""
    content = nbformat.read(notebook, as_version=4)
    place = {"metadata": {"path": str(notebook.parent)}}
    with TemporaryDirectory() as sockets:
        # The kernel is spoken to through files, not through ports that others could reach.
        private = Config({"KernelManager": {"transport": "ipc", "ip": f"{sockets}/kernel"}})
        client = NotebookClient(
            content,
            timeout=LONGEST_CELL,
            resources=place,
            record_timing=False,  # times would change the file without a change of what it shows
            config=private,
        )
        client.execute()
    content.metadata["language_info"] = {"name": "python"}
    nbformat.write(content, folder / notebook.name)
    return folder / notebook.name


def main() -> None:
    """Run all notebooks beside this file."""
    parser = argparse.ArgumentParser(description="Run the notebooks and keep what they show.")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent)
    folder = parser.parse_args().out
    for notebook in sorted(Path(__file__).parent.glob("*.ipynb")):
        print(refresh(notebook, folder))


if __name__ == "__main__":
    main()
