"""One file with the model, the selector and the plug-in's state."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedcohort import Selector, SizeClustered
from fedcohort.deployment import Directory, Limits, Plugin, Rounds
from fedcohort.deployment.checkpoint import must_resume, read_checkpoint, write_checkpoint
from fedcohort.errors import DeploymentError

MINE = Plugin(framework="mine", owner="MyServer")


def test_what_was_written_is_read_whatever_the_names(tmp_path: Path) -> None:
    selector = Selector(SizeClustered(1), {"Lyon": 30}, seed=0)
    selector.draw()
    selector.skip()
    model = {"a.b/../c": np.arange(3.0), "": np.zeros((0, 2)), "steps": np.array(7)}
    path = tmp_path / "new" / "folder" / "state"

    parts: dict[str, Any] = {"model": model, "selector": selector.state(), "empty": {}}
    write_checkpoint(MINE, path, parts, state={"sizes": {"Lyon": 30}})
    state, found = read_checkpoint(MINE, path)
    again = Selector(SizeClustered(1), {}, seed=0)
    again.restore(found["selector"])

    assert state == {"sizes": {"Lyon": 30}}
    assert list(found) == ["model", "selector", "empty"]
    assert list(found["model"]) == list(model)
    assert all((found["model"][name] == own).all() for name, own in model.items())
    assert (again.round_, again.clients) == (1, {"Lyon": 30})
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_servers_rounds_are_restored_when_its_own_parts_fit(tmp_path: Path) -> None:
    def made() -> tuple[Selector, Directory, Rounds]:
        directory = Directory(MINE, {"Lyon": 30})
        selector = Selector(SizeClustered(1), {}, seed=0)
        return selector, directory, Rounds(MINE, selector, directory, Limits())

    before, seen, rounds = made()
    seen.see(["Lyon"])
    seen.seat()
    rounds.draw(None, lambda signal, ids: {})
    before.skip()
    rounds.save(tmp_path / "state", {"model": {"w": np.arange(3.0)}})

    after, restored, other = made()
    parts, take_over = other.read(tmp_path / "state")
    unchanged = after.round_, restored.sizes
    take_over()

    assert parts["model"]["w"].tolist() == [0.0, 1.0, 2.0]
    assert unchanged == (0, {})
    assert (after.round_, restored.sizes) == (1, {"Lyon": 30})


def test_another_framework_or_origin_is_refused(tmp_path: Path) -> None:
    write_checkpoint(MINE, tmp_path / "state", {}, origin={"strategy": "FedAvg"})
    other = Plugin(framework="other", owner="OtherServer")

    with pytest.raises(DeploymentError, match=r"OtherServer: .*another framework, mine; got other"):
        read_checkpoint(other, tmp_path / "state", origin={"strategy": "FedAvg"})
    with pytest.raises(DeploymentError, match=r"another strategy, FedAvg; got FedAdam\. Use"):
        read_checkpoint(MINE, tmp_path / "state", origin={"strategy": "FedAdam"})


@pytest.mark.parametrize("content", [b"", b"nonsense", None])
def test_a_file_that_is_none_is_refused_in_one_sentence(
    content: bytes | None, tmp_path: Path
) -> None:
    if content is not None:
        (tmp_path / "state").write_bytes(content)

    with pytest.raises(DeploymentError, match=r"state cannot be read \(.+\)\. Start without it\.$"):
        read_checkpoint(MINE, tmp_path / "state")


def test_a_checkpoint_is_not_overwritten_by_mistake(tmp_path: Path) -> None:
    path = tmp_path / "state"
    before = must_resume(MINE, path, resume=True), must_resume(MINE, None, resume=False)
    write_checkpoint(MINE, path, {})

    assert before == (False, False)
    assert must_resume(MINE, path, resume=True)
    with pytest.raises(DeploymentError, match=r"exists already\. Pass resume=True to continue"):
        must_resume(MINE, path, resume=False)
