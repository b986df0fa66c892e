"""Every command of the README runs, and prints what the README says."""

from pathlib import Path

import pytest

from documented_blocks import Block, blocks_of, commands_of, run_command

ROOT = Path(__file__).parents[1]
BLOCKS = [
    block for block in blocks_of((ROOT / "README.md").read_text()) if block.language == "console"
]

#: Calls that would run this test again.
RECURSIVE = ("make test", "make check")
#: How the commands begin that take more than a few seconds.
SLOW = ("make demo", "fedcohort run")


def first_command(block: Block) -> str:
    return commands_of(block)[0].text


def test_the_readme_names_the_two_commands() -> None:
    commands = {command.text for block in BLOCKS for command in commands_of(block)}

    assert {"make demo", "make test"} <= commands


@pytest.mark.parametrize(
    "block",
    [
        pytest.param(block, marks=pytest.mark.slow if first_command(block).startswith(SLOW) else ())
        for block in BLOCKS
    ],
    ids=first_command,
)
def test_the_commands_print_what_the_readme_says(block: Block, tmp_path: Path) -> None:
    for entry in ROOT.iterdir():  # in a place of its own: commands leave files
        if entry.name not in (".git", "runs"):
            (tmp_path / entry.name).symlink_to(entry)
    for command in commands_of(block):
        if command.text in RECURSIVE:
            continue
        if command.text.startswith("make ") and not (ROOT / ".venv" / ".ready").exists():
            pytest.skip("make would first install a virtual environment")

        run_command(command, tmp_path, where="README.md")
