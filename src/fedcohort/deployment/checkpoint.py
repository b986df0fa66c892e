"""Files of checkpoints: arrays by part, and a head that says which plug-in wrote them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from fedcohort._archive import json_array, json_value, read_archive, write_archive
from fedcohort._whole_file import make_folder
from fedcohort.deployment.plugin import Plugin

KIND = "deployment 1"
#: Arrays by part of the checkpoint and name.
Parts = Mapping[str, Mapping[str, NDArray[Any]]]


def write_checkpoint(
    plugin: Plugin,
    path: Path,
    parts: Parts,
    *,
    state: Mapping[str, Any] | None = None,
    origin: Mapping[str, Any] | None = None,
) -> None:
    """Write a checkpoint atomically; only its owner may read it.

    Parameters
    ----------
    plugin
        The plug-in that writes it.
    path
        The file; its folder is made.
    parts
        Arrays by part and name, such as ``{"selector": selector.state(), "model": model}``.
    state
        JSON values to read back, such as ``{"directory": directory.state()}``.
    origin
        JSON values that must be the same when the file is read.
    """
    head = {
        "framework": plugin.framework,
        "origin": dict(origin or {}),
        "state": dict(state or {}),
        "parts": {part: list(arrays) for part, arrays in parts.items()},
    }
    arrays = {
        f"{part}.{place}": array
        for part, named in parts.items()
        for place, array in enumerate(named.values())
    }
    make_folder(path.parent)
    write_archive(path, KIND, {"head": json_array(head), **arrays})


def read_checkpoint(
    plugin: Plugin, path: Path, *, origin: Mapping[str, Any] | None = None
) -> tuple[dict[str, Any], dict[str, dict[str, NDArray[Any]]]]:
    """Return the state and the parts of a checkpoint.

    Refuse a damaged file, one of another framework, and one of another ``origin``.
    """
    try:
        arrays = read_archive(path, KIND)
    except ValueError as error:
        raise plugin.refusal(f"{path} cannot be read ({error}). Start without it.") from error
    head: dict[str, Any] = json_value(arrays["head"])
    written = {"framework": head["framework"], **head["origin"]}
    for name, own in {"framework": plugin.framework, **(origin or {})}.items():
        if written.get(name) != own:
            raise plugin.refusal(
                f"{path} was written with another {name}, {written.get(name)}; got {own}. Use the "
                f"same one."
            )
    parts = {
        part: {name: arrays[f"{part}.{place}"] for place, name in enumerate(names)}
        for part, names in head["parts"].items()
    }
    return head["state"], parts


def must_resume(plugin: Plugin, path: Path | None, *, resume: bool) -> bool:
    """Return whether to continue from a checkpoint; refuse to overwrite one."""
    if path is None or not path.exists():
        return False
    if not resume:
        raise plugin.refusal(
            f"{path} exists already. Pass resume=True to continue from it, or use another file."
        )
    return True
