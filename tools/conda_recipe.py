"""The recipe for conda-forge: ``python tools/conda_recipe.py dist/fedcohort-VERSION.tar.gz``.

Everything in it comes from pyproject.toml and from the sdist, whose checksum it names. Extras are
bounds for packages that users install beside fedcohort: conda has no extras.
"""

from __future__ import annotations

import hashlib
import sys
import tomllib
from collections.abc import Iterable
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
#: Packages whose name on conda-forge is another one.
RENAMED = {"torch": "pytorch"}
#: Extras of what conda-forge has.
EXTRAS = ("sim", "report", "scale")
RECIPE = """\
schema_version: 1

context:
  version: "{version}"

package:
  name: fedcohort
  version: ${{{{ version }}}}

source:
  url: https://pypi.org/packages/source/f/fedcohort/fedcohort-${{{{ version }}}}.tar.gz
  sha256: {checksum}

build:
  noarch: python
  number: 0
  script: ${{{{ PYTHON }}}} -m pip install . -vv --no-deps --no-build-isolation
  python:
    entry_points:
{entry_points}

requirements:
  host:
    - python ${{{{ python_min }}}}.*
    - pip
    - hatchling
  run:
    - python >=${{{{ python_min }}}}
{run}
  run_constraints:
{constraints}

tests:
  - python:
      imports:
        - fedcohort
      python_version:
        - ${{{{ python_min }}}}.*
        - "*"
      pip_check: true
  - script:
      - fedcohort --version
      - fedcohort doctor

about:
  homepage: {documentation}
  repository: {repository}
  documentation: {documentation}
  license: {license}
  license_file: LICENSE
  summary: "{summary}"

extra:
  recipe-maintainers:
    - fedcohort
"""


def recipe(sdist: Path) -> str:
    """Return the recipe for an sdist."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = [each for name in EXTRAS for each in project["optional-dependencies"][name]]
    scripts = [f"{name} = {place}" for name, place in project["scripts"].items()]
    return RECIPE.format(
        version=sdist.name.removeprefix("fedcohort-").removesuffix(".tar.gz"),
        checksum=hashlib.sha256(sdist.read_bytes()).hexdigest(),
        entry_points=_lines(scripts, indent=6),
        run=_lines(map(_bound, project["dependencies"]), indent=4),
        constraints=_lines(map(_bound, extras), indent=4),
        documentation=project["urls"]["Documentation"],
        repository=project["urls"]["Repository"],
        license=project["license"],
        summary=project["description"],
    )


def _bound(requirement: str) -> str:
    found = Requirement(requirement)
    return f"{RENAMED.get(found.name, found.name)} {found.specifier}"


def _lines(entries: Iterable[str], *, indent: int) -> str:
    return "\n".join(f"{' ' * indent}- {each}" for each in entries)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("conda_recipe.py: needs one sdist, as dist/fedcohort-0.2.0.tar.gz. Run: make dist")
    sys.stdout.write(recipe(Path(sys.argv[1])))
