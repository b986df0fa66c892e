"""The workflows are free of mistakes that linters find, and say the same as the package."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from command_line import lint
from requirement_closure import PROJECT, ROOT

GITHUB = ROOT / ".github"
WORKFLOWS = sorted((GITHUB / "workflows").glob("*.yml"))
LOCAL_HOOK = re.compile(r"\.venv/bin/([\w-]+)")


def read(path: Path) -> Any:
    return pytest.importorskip("yaml", reason="reads the workflows").safe_load(path.read_text())


def steps(workflow: Any) -> list[dict[str, Any]]:
    return [step for job in workflow["jobs"].values() for step in job.get("steps", [])]


def test_zizmor_finds_no_weakness_and_no_unknown_key() -> None:
    lint("zizmor", "--offline", "--strict-collection", "--quiet", str(GITHUB))


def test_actionlint_finds_no_mistake() -> None:
    lint("actionlint", *map(str, WORKFLOWS))


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_actions_are_pinned_by_commit_and_rights_are_granted_job_by_job(path: Path) -> None:
    workflow = read(path)
    used = re.findall(r"uses: (?!\./)(\S+)(.*)", path.read_text())

    assert workflow["permissions"] == {"contents": "read"}
    assert "concurrency" in workflow
    assert all(re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", action) for action, _ in used), used
    assert all(re.fullmatch(r" # v\d+\.\d+\.\d+", comment) for _, comment in used), used


def test_one_action_is_used_in_one_version() -> None:
    used = {use for path in WORKFLOWS for use in re.findall(r"uses: (\S+)@(\w+)", path.read_text())}

    assert len(used) == len({action for action, _ in used})


def test_what_make_is_asked_for_can_be_made() -> None:
    rules = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    runs = [step.get("run", "") for path in WORKFLOWS for step in steps(read(path))]
    targets = [target for run in runs for target in re.findall(r'make "?([\w-]+)', run)]

    assert {"check-here", "docs", "test-frameworks", "check-python-"} == set(targets)
    assert set(targets) - {"check-python-"} <= set(rules)


def test_the_package_names_the_pythons_and_systems_that_are_tested() -> None:
    matrix = read(GITHUB / "workflows" / "tests.yml")["jobs"]["core"]["strategy"]["matrix"]
    said = [line.split(" :: ") for line in PROJECT["classifiers"]]
    systems = {line[-1] for line in said if line[0] == "Operating System"}
    tested = {"ubuntu-latest": "Linux", "macos-latest": "MacOS"}

    assert [line[-1] for line in said if line[1] == "Python" and "." in line[-1]] == matrix[
        "python"
    ]
    assert PROJECT["requires-python"] == f">={matrix['python'][0]}"
    assert systems <= {tested[name] for name in matrix["os"]}


def test_hooks_and_templates_are_whole() -> None:
    hooks = read(ROOT / ".pre-commit-config.yaml")["repos"][0]["hooks"]
    programs = {LOCAL_HOOK.match(hook["entry"]) for hook in hooks}
    declared = " ".join(PROJECT["optional-dependencies"]["dev"])
    forms = [read(path) for path in (GITHUB / "ISSUE_TEMPLATE").glob("*.yml")]

    assert all(found and found[1] in declared for found in programs)
    assert sorted(form["name"] for form in forms if "body" in form) == ["Bug", "Idea"]
    assert all(form["description"] for form in forms if "body" in form)


def test_every_address_is_of_one_repository() -> None:
    pages = [*GITHUB.rglob("*.*"), *(ROOT / name for name in ("README.md", "SECURITY.md"))]
    text = "\n".join(path.read_text() for path in pages if path.is_file())

    home = PROJECT["urls"]["Repository"]
    assert {
        f"https://github.com/{name}"
        for name in re.findall(r"https://github\.com/([\w-]+/[\w-]+)", text)
    } == {home}
    assert all(home in url or "fedcohort.github.io" in url for url in PROJECT["urls"].values())
