"""The commands of the command line, as the program itself knows them."""

from __future__ import annotations

import re
from collections.abc import Sequence

from click import Command, Context, Group, Option, Parameter
from typer.main import get_command

from fedcohort.cli.app import app


def commands() -> str:
    """Return a section for every command."""
    program = get_command(app)
    if not isinstance(program, Group):
        raise TypeError(f"fedcohort has no commands: {program!r}")
    context = Context(program, info_name="fedcohort")
    own = [each for each in program.params if isinstance(each, Option) and not each.hidden]
    sections = [_table(own, context)]
    for name, command in program.commands.items():
        sections.append(_section(command, Context(command, info_name=name, parent=context)))
    return "\n\n".join(sections)


def _section(command: Command, context: Context) -> str:
    usage = command.get_usage(context).removeprefix("Usage: ")
    parts = [
        f"## fedcohort {command.name}",
        f"```text\n{' '.join(usage.split())}\n```",
        _text(command.help or ""),
        _table(command.params, context),
    ]
    return "\n\n".join(parts)


def _table(parameters: Sequence[Parameter], context: Context) -> str:
    lines = ["| option | meaning |", "| --- | --- |"]
    lines += [f"| {_names(each, context)} | {_meaning(each)} |" for each in parameters]
    return "\n".join(lines)


def _names(parameter: Parameter, context: Context) -> str:
    """Return how an argument or option is written."""
    if not isinstance(parameter, Option):
        return f"`{parameter.make_metavar(context)}`"
    value = "" if parameter.is_flag else f" {parameter.make_metavar(context).split()[0]}"
    return f"`{', '.join(reversed(parameter.opts))}{value}`"


def _meaning(parameter: Parameter) -> str:
    """Return an argument's or option's help, whether it is needed, and its default."""
    said = _text(getattr(parameter, "help", None) or "").replace("|", "\\|")
    if isinstance(parameter, Option) and parameter.required:
        return f"{said} **Needed.**"
    default = parameter.default
    is_told = default is None or default is False or callable(default)
    return said if is_told else f"{said} Default: `{default}`."


def _text(said: str) -> str:
    """Return help with its options as code.

    >>> _text("With --plot: a figure.")
    'With `--plot`: a figure.'
    """
    return re.sub(r"(?<![\w`-])(--[a-z][a-z-]*)", r"`\1`", said)
