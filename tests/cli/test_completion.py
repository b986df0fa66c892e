"""What the shell offers after TAB."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from fedcohort.cli.app import main
from fedcohort.designs import RECIPES

FILE = """
rounds = 3
[training]
lr = 0.1
steps = 2
[server]
oracle_every = 10
[[design]]
recipe = "multinomial"
[[design]]
recipe = "size"
label = "by-size"
[[design]]
recipe = "target"
label = "the oracle"
"""


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("small.toml").write_text(FILE)
    Path("broken.toml").write_text("rounds = ")
    for name in ("runs/first", "runs/second", "elsewhere/third"):
        Path(name).mkdir(parents=True)
        (Path(name) / "run.json").touch()
    Path("runs/no-run").mkdir()


@pytest.fixture
def offered(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., list[str]]:
    """Return a function that asks as bash does: all words so far, the last one incomplete."""

    def ask(*words: str) -> list[str]:
        monkeypatch.setenv("_FEDCOHORT_COMPLETE", "complete_bash")
        monkeypatch.setenv("COMP_WORDS", " ".join(["fedcohort", *words]))
        monkeypatch.setenv("COMP_CWORD", str(len(words)))
        with pytest.raises(SystemExit) as ended:
            main([])
        printed = capsys.readouterr()
        assert (ended.value.code, printed.err) == (0, "")
        return printed.out.split()

    return ask


@pytest.mark.parametrize(
    ("words", "offers"),
    [
        (["pl"], ["plan"]),
        (["re"], ["resume", "report"]),
        (["plan", "sizes.csv", "--des"], ["--design"]),
        (["plan", "--design", "to"], ["tournament"]),
        (["compare", "-d", "s"], ["size", "similarity", "stratified", "shuffled"]),
        (["compare", "-d", "size,s"], ["size,similarity", "size,stratified", "size,shuffled"]),
        (["compare", "-d", "nobody"], []),
        (["run", "small.toml", "--device", "c"], ["cpu", "cuda"]),
        (["run", "small.toml", "--tracker", ""], ["tensorboard", "mlflow", "wandb"]),
        (["run", "small.toml", "--designs", ""], ["multinomial", "by-size"]),
        (["run", "small.toml", "--designs", "by-size,"], ["by-size,multinomial"]),
        (["run", "small.toml", "--set", "tr"], ["training.lr=", "training.steps="]),
        (["run", "small.toml", "--set", "o"], []),
        (["run", "broken.toml", "--set", ""], []),
        (["run", "--set", ""], []),
        (["report", "--figures", ""], ["png", "svg", "pdf"]),
        (["resume", ""], ["runs/first", "runs/second"]),
        (["export", "runs/s"], ["runs/second"]),
        (["report", "runs/first", "runs/s"], ["runs/second"]),
        (["runs", "else"], ["elsewhere"]),
        (["resume", "elsewhere/"], ["elsewhere/third"]),
        (["resume", "nowhere/"], []),
    ],
    ids=" ".join,
)
def test_the_shell_offers(
    offered: Callable[..., list[str]], words: list[str], offers: list[str]
) -> None:
    assert offered(*words) == offers


def test_every_design_is_offered(offered: Callable[..., list[str]]) -> None:
    assert offered("plan", "--design", "") == list(RECIPES)


def test_bash_completes_with_the_script_that_is_shown(tmp_path: Path) -> None:
    program = Path(sys.executable).parent / "fedcohort"
    if shutil.which("bash") is None or not program.exists():
        pytest.skip("needs bash and an installed fedcohort")
    # As bash calls a completion: the words in an array, the answers in another.
    script = """
        fedcohort --show-completion > shown || exit
        source ./shown
        COMP_WORDS=(fedcohort plan --design tou) COMP_CWORD=3
        $(complete -p fedcohort | grep -o '_[a-z_]*completion') fedcohort tou --design
        echo "${COMPREPLY[@]}"
    """
    path = f"{program.parent}{os.pathsep}{os.environ['PATH']}"

    result = subprocess.run(
        ["bash", "-c", script], env={**os.environ, "PATH": path}, capture_output=True, text=True
    )

    assert (result.returncode, result.stdout, result.stderr) == (0, "tournament\n", "")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_is_installed_into_the_home_of_the_user(tmp_path: Path, shell: str) -> None:
    home = tmp_path / "home"
    home.mkdir()
    environment = {
        **os.environ,
        "HOME": str(home),
        "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1",
    }

    result = subprocess.run(
        [sys.executable, "-m", "fedcohort", "--install-completion", shell],
        env=environment,
        capture_output=True,
        text=True,
    )

    assert result.returncode == 0, result.stderr
    assert f"{shell} completion installed" in result.stdout
    written = [path for path in home.rglob("*") if path.is_file()]
    assert any("_FEDCOHORT_COMPLETE" in path.read_text() for path in written)


@pytest.mark.parametrize("text", ["design = 3", "design = [1, 2]", "[design]\nrecipe = 'size'"])
def test_a_file_whose_designs_are_none_offers_none(
    offered: Callable[..., list[str]], text: str
) -> None:
    Path("odd.toml").write_text(text)

    assert offered("run", "odd.toml", "--designs", "") == []
