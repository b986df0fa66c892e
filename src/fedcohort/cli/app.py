"""The command line's entry: one line for every error, exit code 2."""

import os
import sys
from typing import Annotated

import typer

from fedcohort.cli.compare import compare
from fedcohort.cli.doctor import doctor
from fedcohort.cli.export import export
from fedcohort.cli.plan import plan
from fedcohort.cli.report import report
from fedcohort.cli.run import resume, run
from fedcohort.cli.runs import runs
from fedcohort.errors import FedcohortError
from fedcohort.version import __version__

# The base of all complaints about arguments. Newer releases of typer carry a click of their own,
# so that it cannot be imported from click.
BadCommandLine: type[Exception] = typer.BadParameter.__mro__[2]

app = typer.Typer(
    help="fedcohort chooses who trains: client sampling for federated learning.",
    pretty_exceptions_enable=False,
    suggest_commands=False,  # click suggests already
)
app.command()(plan)
app.command()(compare)
for _command in (run, resume, runs, report, export, doctor):
    app.command()(_command)


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
    """Run a command; errors that a caller can put right become one line on standard error."""
    try:
        code = app(arguments, prog_name="fedcohort", standalone_mode=False)
        sys.stdout.flush()
        return int(code or 0)
    except BadCommandLine as error:
        # Every complaint of click has the method; the base class is not importable everywhere.
        return _complain(error.format_message())  # type: ignore[attr-defined]
    except FedcohortError as error:
        return _complain(str(error))
    except (typer.Abort, KeyboardInterrupt):
        return 130
    except MemoryError:
        return _complain("needs more memory than there is. Use fewer clients or a smaller cohort.")
    except BrokenPipeError:
        # The reader has gone (as with `| head`); keep Python from flushing into it once more.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        if error.filename is not None:
            return _complain(f"{error.filename}: {str(error.strerror).lower()}. Check the path.")
        return _complain(f"standard output cannot be written ({error.strerror}).")


def _complain(message: str) -> int:
    print(f"fedcohort: {' '.join(message.split())}", file=sys.stderr)
    return 2
