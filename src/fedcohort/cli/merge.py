"""``fedcohort merge``: make one run folder of several."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from fedcohort.cli.options import a_run_folder, argument, option
from fedcohort.cli.run import print_summary


def merge(
    folders: Annotated[
        list[Path], argument("DIR...", "Complete run folders of one experiment.", a_run_folder)
    ],
    out: Annotated[Path, option("--out -o", "DIR", "The new folder.")],
) -> None:
    """Merge run folders of one experiment file into one folder.

    They may differ in seeds, panels, designs and machines. Every unit keeps its source.
    """
    from fedcohort.experiments import merge_runs, read_results

    command = ["fedcohort", "merge", *map(str, folders), "--out", str(out)]
    folder, notes = merge_runs(folders, out, command=command)
    for note in notes:
        print(f"note: {note}", file=sys.stderr)
    print_summary(read_results(folder.path))
