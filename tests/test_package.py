"""The wheel and the sdist are whole, and the wheel works where there is nothing else."""

import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import pytest

import fedcohort
from requirement_closure import PROJECT, ROOT, closure, declared

VERSION = fedcohort.__version__
HERE = Path(sysconfig.get_paths()["purelib"])
#: What an empty folder needs for a run of seconds.
TINY = """
rounds = 3
seeds = [0]
cohort_size = 5
[data]
dataset = "digits"
partition = "one-class"
train_size = 13
test_size = 3
[model]
name = "mlp"
[training]
steps = 2
batch_size = 10
lr = 0.1
[[design]]
recipe = "multinomial"
[[design]]
recipe = "similarity"
"""


def test_the_version_is_the_same_everywhere() -> None:
    citation = re.search(r"^version: (\S+)$", (ROOT / "CITATION.cff").read_text(), flags=re.M)
    newest = re.search(r"^## (\S+) - (\S+)$", (ROOT / "CHANGELOG.md").read_text(), flags=re.M)
    released = re.search(r"^date-released: (\S+)$", (ROOT / "CITATION.cff").read_text(), flags=re.M)

    assert citation is not None
    assert newest is not None
    assert released is not None
    assert citation[1] == newest[1] == VERSION
    assert released[1] == newest[2]


def test_the_addresses_are_the_same_everywhere() -> None:
    citation = (ROOT / "CITATION.cff").read_text()

    assert f"repository-code: {PROJECT['urls']['Repository']}\n" in citation


def built(source: Path, folder: Path, *targets: str) -> Path:
    """Build from a source tree, offline."""
    pytest.importorskip("hatchling", reason="builds the package")
    command = [sys.executable, "-m", "hatchling", "build", "--directory", str(folder)]
    for target in targets:
        command += ["--target", target]
    subprocess.run(command, cwd=source, check=True, capture_output=True)
    return folder


@pytest.fixture(scope="module")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(ROOT, tmp_path_factory.mktemp("dist"))


def test_the_recipe_for_conda_forge_is_that_of_the_sdist(distributions: Path) -> None:
    yaml = pytest.importorskip("yaml", reason="reads the recipe")
    (sdist,) = distributions.glob("*.tar.gz")
    command = [sys.executable, str(ROOT / "tools" / "conda_recipe.py"), str(sdist)]

    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout

    found = yaml.safe_load(text)
    assert found["context"]["version"] == VERSION
    assert found["source"]["sha256"] == sha256(sdist.read_bytes()).hexdigest()
    run = [each.replace(" ", "") for each in found["requirements"]["run"][1:]]
    assert run == PROJECT["dependencies"]
    assert found["build"]["python"]["entry_points"] == ["fedcohort = fedcohort.cli:main"]
    assert "pytorch >=2.3" in found["requirements"]["run_constraints"]


def files_in(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def in_tree(folder: Path) -> set[str]:
    """Return the files below a folder, but for what programs leave there."""
    left = ("__pycache__", ".ipynb_checkpoints")
    return {
        str(path.relative_to(ROOT))
        for path in folder.rglob("*")
        if path.is_file() and not set(left) & set(path.parts)
    }


def test_the_wheel_holds_the_whole_package_and_nothing_else(distributions: Path) -> None:
    content = files_in(distributions / f"fedcohort-{VERSION}-py3-none-any.whl")

    package = {f"src/{name}" for name in content if name.startswith("fedcohort/")}
    assert package == in_tree(ROOT / "src" / "fedcohort")
    data = {"py.typed", "report/page.html", "report/page.css", "report/page.js", "report/plots.js"}
    data |= {"simulation/data/shakespeare.json.xz", "simulation/data/SOURCES.md"}
    assert data <= {name.removeprefix("src/fedcohort/") for name in package}
    others = {name.partition("/")[0] for name in content if f"src/{name}" not in package}
    assert others == {f"fedcohort-{VERSION}.dist-info"}


def test_the_sdist_holds_what_tests_need_and_builds_the_same_wheel(
    distributions: Path, tmp_path: Path
) -> None:
    with tarfile.open(distributions / f"fedcohort-{VERSION}.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    unpacked = tmp_path / f"fedcohort-{VERSION}"

    content = {str(path.relative_to(unpacked)) for path in unpacked.rglob("*") if path.is_file()}
    for folder in ("src", "tests", "examples", "experiments", "docs", "notebooks", "benchmarks"):
        assert in_tree(ROOT / folder) <= content
    pictures = re.findall(r"!\[[^]]*\]\((?!https?:)([^)]+)\)", (ROOT / "README.md").read_text())
    assert {*pictures, ".github/workflows/tests.yml"} <= content
    for name in ("Makefile", "README.md", "CHANGELOG.md", "constraints.txt", "LICENSE"):
        assert name in content
    wheel = f"fedcohort-{VERSION}-py3-none-any.whl"
    again = built(unpacked, tmp_path / "again", "wheel")
    assert files_in(again / wheel) == files_in(distributions / wheel)


@dataclass(frozen=True)
class Place:
    """A virtual environment with the wheel in it, and an empty folder to work in."""

    environment: Path
    folder: Path

    def call(self, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a program of the environment, which knows nothing of this checkout."""
        own = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        return subprocess.run(
            [str(self.environment / "bin" / program), *arguments],
            cwd=self.folder,
            env={**own, "COLUMNS": "80"},
            capture_output=True,
            text=True,
        )

    def says(self, *arguments: str) -> str:
        """Run ``fedcohort``; return what it prints."""
        result = self.call("fedcohort", *arguments)
        assert result.returncode == 0, result.stderr
        return result.stdout

    def refuses(self, *arguments: str) -> str:
        """Run ``fedcohort``; return the sentence in which it complains."""
        result = self.call("fedcohort", *arguments)
        assert (result.returncode, result.stdout, result.stderr.count("\n")) == (2, "", 1)
        return result.stderr


def place_with(wheel: Path, folder: Path) -> Place:
    environment = folder / "environment"
    venv.create(environment, symlinks=True)
    pip = [sys.executable, "-m", "pip", "--python", str(environment / "bin" / "python")]
    options = ["install", "--quiet", "--no-index", "--no-deps", "--disable-pip-version-check"]
    subprocess.run([*pip, *options, str(wheel)], check=True, capture_output=True)
    (folder / "empty").mkdir()
    return Place(environment, folder / "empty")


def packages_of(place: Place) -> Path:
    (found,) = (place.environment / "lib").glob("python*/site-packages")
    return found


@pytest.fixture(scope="module")
def everything(distributions: Path, tmp_path_factory: pytest.TempPathFactory) -> Place:
    """Return a place with the wheel, and beside it what is installed here."""
    (wheel,) = distributions.glob("*.whl")
    place = place_with(wheel, tmp_path_factory.mktemp("everything"))
    # Paths in such a file are searched last, and their own .pth files are not read.
    (packages_of(place) / "here.pth").write_text(f"{HERE}\n")
    return place


@pytest.fixture(scope="module")
def core(distributions: Path, tmp_path_factory: pytest.TempPathFactory) -> Place:
    """Return a place with the wheel and what it requires without extras, and nothing else."""
    (wheel,) = distributions.glob("*.whl")
    place = place_with(wheel, tmp_path_factory.mktemp("core"))
    for package in closure(declared()).values():
        assert package is not None
        for name in {file.parts[0] for file in package.files or []} - {"..", "__pycache__"}:
            target = packages_of(place) / name
            if not target.exists():
                target.symlink_to(Path(str(package.locate_file(name))))
    return place


def test_the_installed_package_is_the_wheel(everything: Place) -> None:
    found = everything.call("python", "-c", "import fedcohort; print(fedcohort.__file__)")

    assert Path(found.stdout.strip()).is_relative_to(everything.environment)
    assert everything.says("--version") == f"fedcohort {VERSION}\n"
    assert f"fedcohort {VERSION}, Python" in everything.says("doctor")


@pytest.mark.slow
def test_the_wheel_runs_and_reports_in_an_empty_folder(everything: Place) -> None:
    for module in ("torch", "pyarrow", "sklearn", "plotly", "matplotlib"):
        pytest.importorskip(module, reason="not all extras are installed")
    (everything.folder / "tiny.toml").write_text(TINY)

    assert "run folder: runs/tiny" in everything.says("run", "tiny.toml")
    assert "runs/tiny/report.html" in everything.says("report", "--figures", "png")
    assert "runs/tiny complete" in " ".join(everything.says("runs").split())
    page = (everything.folder / "runs" / "tiny" / "report.html").read_text()
    for asset in ("page.css", "page.js", "plots.js"):
        assert (ROOT / "src" / "fedcohort" / "report" / asset).read_text().strip() in page
    assert list((everything.folder / "runs" / "tiny" / "figures").glob("*.png"))


def test_without_extras_plans_and_comparisons_work(core: Place) -> None:
    (core.folder / "sizes.csv").write_text("id,size\na,5\nb,3\nc,2\n")

    assert "distribution" in core.says("plan", "sizes.csv", "--cohort-size", "2")
    assert "multinomial" in core.says("compare", "sizes.csv", "--cohort-size", "2")
    missing = "what is missing comes with: pip install 'fedcohort[dp,flower,ray,report,scale,sim]'"
    assert missing in " ".join(core.says("doctor").split())
    assert "Usage: fedcohort" in core.says("--help")


def test_without_extras_what_needs_them_names_the_install_command(core: Place) -> None:
    (core.folder / "sizes.csv").write_text("5\n3\n2\n")
    (core.folder / "tiny.toml").write_text(TINY)
    (core.folder / "run").mkdir(exist_ok=True)
    sizes, figure = ["sizes.csv", "--cohort-size", "2"], ["--plot", "figure.png"]
    needs = {
        "sim": [
            ["run", "tiny.toml"],
            ["resume", "run"],
            ["export", "run", "--csv"],
            ["compare", "run"],
        ],
        "report": [["report", "run"], ["plan", *sizes, *figure], ["compare", *sizes, *figure]],
    }

    for extra, commands in needs.items():
        for command in commands:
            assert core.refuses(*command).endswith(f"Run: pip install 'fedcohort[{extra}]'\n")
    flower = core.call("python", "-c", "import fedcohort.flower")
    assert flower.stderr.endswith("Run: pip install 'fedcohort[flower]'\n")
