"""Entry point of the command line. An error prints one line and exits with 2."""

import inspect
import os
import sys
from collections.abc import Callable
from typing import Annotated

import typer

from fedcohort._version import __version__
from fedcohort.cli.audit import audit
from fedcohort.cli.compare import compare
from fedcohort.cli.doctor import doctor
from fedcohort.cli.draw import draw
from fedcohort.cli.export import export
from fedcohort.cli.init import init
from fedcohort.cli.merge import merge
from fedcohort.cli.plan import plan
from fedcohort.cli.privacy import privacy
from fedcohort.cli.report import report
from fedcohort.cli.run import resume, run
from fedcohort.cli.runs import runs
from fedcohort.cli.slurm import slurm, status
from fedcohort.cli.watch import watch
from fedcohort.designs import RECIPES
from fedcohort.errors import FedcohortError

# Base class of all errors about arguments. Newer releases of typer bundle their own click, so it
# cannot be imported from click.
BadCommandLine: type[Exception] = typer.BadParameter.__mro__[2]

#: Help text about designs. The hyper-parameters are those of the recipes.
DESIGN_LINES = (
    f"Designs: {', '.join(RECIPES)}.",
    "Hyper-parameters follow a colon: size:whole_rows_first, similarity:measure=l2.",
    "",
)
#: Groups of commands in the help.
FROM_SIZES, EXPERIMENTS, HERE = "From a list of sizes", "Experiments", "This installation"
FROM_LOGS = "From the log of a run"

app = typer.Typer(
    help="fedcohort chooses who trains: client sampling for federated learning.",
    epilog="Begin with: fedcohort compare sizes.csv --cohort-size 10",
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
    suggest_commands=False,  # click suggests already
)


def _add(command: Callable[..., None], panel: str, *lines: str) -> None:
    """Add a command to a panel of the help. ``lines`` follow the command's docstring."""
    paragraphs = inspect.cleandoc(command.__doc__ or "").split("\n\n")
    app.command(
        help="\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs),
        epilog="\n\n".join(lines),
        rich_help_panel=panel,
    )(command)


_add(
    plan,
    FROM_SIZES,
    *DESIGN_LINES,
    "Examples:",
    "fedcohort plan sizes.csv --cohort-size 10",
    "fedcohort plan sizes.csv -m 10 --design size:whole_rows_first --plot line.png",
    "echo '[5, 3, 1]' | fedcohort plan - -m 2",
)
_add(
    compare,
    FROM_SIZES,
    *DESIGN_LINES,
    "Examples:",
    "fedcohort compare sizes.csv --cohort-size 10",
    "fedcohort compare sizes.csv -m 5,10,20",
    "fedcohort compare sizes.csv -m 10 --designs multinomial,size --json",
    "fedcohort compare sizes.csv -m 10 --updates updates.npy",
    "fedcohort compare runs/digits",
)
_add(
    privacy,
    FROM_SIZES,
    *DESIGN_LINES,
    "Examples:",
    "fedcohort privacy sizes.csv -m 10 --rounds 600",
    "fedcohort privacy sizes.csv -m 10 --rounds 600 --noise 2 -d poisson",
)
_add(
    draw,
    FROM_SIZES,
    *DESIGN_LINES,
    "Examples:",
    "fedcohort draw sizes.csv -m 10 --rounds 20",
    "fedcohort draw sizes.csv -m 10 --state rounds.state --csv",
    "fedcohort draw sizes.csv --state rounds.state --failed client-11",
)
_add(
    audit,
    FROM_LOGS,
    *DESIGN_LINES,
    "Examples:",
    "fedcohort audit selections.jsonl",
    "fedcohort audit rounds.csv --sizes sizes.csv --out audit.html",
    "fedcohort audit workspace --design cohort-mean --cohort-size 3",
    "fedcohort audit selections.jsonl --pseudonyms audit.key --csv clients.csv",
)
_add(
    init,
    EXPERIMENTS,
    "Examples:",
    "fedcohort init my-experiment",
    "fedcohort init --flower my-app --diff",
)
_add(
    run,
    EXPERIMENTS,
    "Examples:",
    "fedcohort run digits.toml",
    "fedcohort run digits.toml --seeds 0-1 --designs multinomial,size",
    "fedcohort run digits.toml --set rounds=20 --out runs/short",
    "fedcohort run digits.toml --workers auto",
    "fedcohort run digits.toml --seeds 0-5 --part 1/3 --out parts/1",
)
_add(resume, EXPERIMENTS, "Example: fedcohort resume runs/digits")
_add(runs, EXPERIMENTS, "Example: fedcohort runs")
_add(
    merge,
    EXPERIMENTS,
    "Examples:",
    "fedcohort run digits.toml --seeds 0-1 --out runs/first",
    "fedcohort run digits.toml --seeds 2-3 --out runs/second",
    "fedcohort merge runs/first runs/second --out runs/all",
)
_add(
    slurm,
    EXPERIMENTS,
    "Examples:",
    "fedcohort slurm digits.toml --out jobs --time 2:00:00 --mem 8G",
    "fedcohort slurm digits.toml --out gpu-jobs --gpus 1 --sbatch=--qos=high",
)
_add(status, EXPERIMENTS, "Example: fedcohort status jobs")
_add(
    report,
    EXPERIMENTS,
    "Examples:",
    "fedcohort report",
    "fedcohort report runs/digits --figures pdf",
    "fedcohort report runs/digits runs/short --out both.html",
)
_add(watch, EXPERIMENTS, "Example: fedcohort watch runs/digits")
_add(
    export,
    EXPERIMENTS,
    "Examples:",
    "fedcohort export runs/digits --csv",
    "fedcohort export runs/digits --latex",
)
_add(doctor, HERE, "Example: fedcohort doctor --json")


@app.callback(invoke_without_command=True)
def _options(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Show the version.")] = False,
) -> None:
    if version:
        print(f"fedcohort {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        print(context.get_help())


def main(arguments: list[str] | None = None) -> int:
    """Run a command. Print a user's error as one line on standard error."""
    try:
        code = app(arguments, prog_name="fedcohort", standalone_mode=False)
        sys.stdout.flush()
        return int(code or 0)
    except BadCommandLine as error:
        # All of click's errors have this method, but their base class cannot always be imported.
        return _complain(error.format_message())  # type: ignore[attr-defined]
    except FedcohortError as error:
        return _complain(str(error))
    except (typer.Abort, KeyboardInterrupt):
        return 130
    except MemoryError:
        return _complain("needs more memory than there is. Use fewer clients or a smaller cohort.")
    except BrokenPipeError:
        # The reader closed the pipe (as `| head` does). Keep Python from flushing into it again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        if error.filename is not None:
            return _complain(f"{error.filename}: {str(error.strerror).lower()}. Check the path.")
        return _complain(f"standard output cannot be written ({error.strerror}).")


def _complain(message: str) -> int:
    print(f"fedcohort: {' '.join(message.split())}", file=sys.stderr)
    return 2
