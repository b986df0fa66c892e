"""``fedcohort report``: write the results of runs as one page and as figures."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from fedcohort._lazy import import_extra
from fedcohort._whole_file import make_folder
from fedcohort.cli.options import RUNS, a_run_folder, argument, latest_run, one_of, option
from fedcohort.errors import InputError
from fedcohort.report import FIGURE_KINDS

if TYPE_CHECKING:
    from fedcohort.experiments import Results


PAGE_HELP = "The page. Default: DIR/report.html, or report.html here for several."
FIGURES_HELP = f"Also draw figures beside the page, in figures/: {', '.join(FIGURE_KINDS)}."


def report(
    folders: Annotated[
        list[Path] | None,
        argument("[DIR]...", f"Run folders. Default: the latest under ./{RUNS}.", a_run_folder),
    ] = None,
    out: Annotated[Path | None, option("--out -o", "FILE", PAGE_HELP)] = None,
    figures: Annotated[
        str | None, option("--figures", "KIND", FIGURES_HELP, complete=one_of(FIGURE_KINDS))
    ] = None,
) -> None:
    """Write the results of runs to one HTML page, which opens offline."""
    if figures is not None and figures not in FIGURE_KINDS:
        raise InputError(
            f"report: --figures must be {', '.join(FIGURE_KINDS)}; got {figures!r}. Choose one of "
            f"them."
        )
    chosen = list(dict.fromkeys(folders)) if folders else [latest_run("report")]
    import_extra("plotly.offline", extra="report", owner="report")
    if figures is not None:
        import_extra("matplotlib.figure", extra="report", owner="report --figures")
    from fedcohort.experiments import read_results
    from fedcohort.report.page import write_page

    results = [read_results(folder) for folder in chosen]
    page = out or (chosen[0] / "report.html" if len(chosen) == 1 else Path("report.html"))
    make_folder(page.parent)
    write_page(results, page)
    written = [page, *_figures(results, page.parent / "figures", figures)]
    for each in results:
        _print_answers(each)
    print(*written, sep="\n")


def _figures(results: list[Results], folder: Path, kind: str | None) -> list[Path]:
    """Draw the figures of every run. Several runs get a folder each."""
    if kind is None:
        return []
    from fedcohort.report.figures import save_figures

    if len(results) == 1:
        return save_figures(results[0], folder, kind)
    names = _distinct([each.folder.path.resolve().name for each in results])
    pairs = zip(results, names, strict=True)
    return [path for each, name in pairs for path in save_figures(each, folder / name, kind)]


def _distinct(names: list[str]) -> list[str]:
    """Append numbers to names that occur more than once."""
    return [
        name if names.count(name) == 1 else f"{name}-{names[:place].count(name) + 1}"
        for place, name in enumerate(names)
    ]


def _print_answers(results: Results) -> None:
    from fedcohort.report.answer import panel_sentences, state_sentence

    experiment = results.folder.experiment
    print(f"{results.folder.path}: {experiment.heading}")
    state = state_sentence(results)
    if state:
        print(f"  {state}")
    for panel in experiment.panels:
        if len(experiment.panels) > 1:
            print(f"  {panel.label}:")
        for sentence in panel_sentences(results, panel):
            print(f"  {sentence}")
