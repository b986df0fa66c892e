"""Read an experiment file: parse TOML, check it, and report an error in one sentence.

The top of a file has the keys of :class:`~fedcohort.experiments.settings.Panel`, ``title`` and
``checkpoint_every``. Each ``[[panel]]`` has a ``label`` and the keys that it changes.
A file without ``[[panel]]`` has one panel.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedcohort._arguments import brief, checked_path, did_you_mean
from fedcohort._whole_file import reason_of
from fedcohort.errors import ExperimentError, FedcohortError
from fedcohort.experiments.checked_table import check_keys, checked_texts
from fedcohort.experiments.settings import Experiment, Panel

#: Keys of the whole experiment. All other keys can differ between panels.
OWN_KEYS = ("title", "checkpoint_every", "panel")
LARGEST_SEED_LIST = 10_000


def read_experiment(
    path: str | Path,
    *,
    seeds: str | None = None,
    designs: str | None = None,
    panels: str | None = None,
    changes: str | Iterable[str] = (),
) -> Experiment:
    """Read an experiment file, and apply the changes from the command line.

    Parameters
    ----------
    path
        The TOML file. The experiment is named after it.
    seeds
        Seeds that replace the file's, for example ``0-4`` or ``0,3``.
    designs
        Labels of the designs to keep, separated by commas. A recipe's name keeps all designs of
        this recipe, unless it is also a label.
    panels
        Labels of the panels to keep, separated by commas.
    changes
        One or several changes for all panels, for example ``training.lr=0.1``.
    """
    path = checked_path("read_experiment", "path", path, error=ExperimentError)
    content = _toml(path)
    given = [changes] if isinstance(changes, str) else changes
    texts = checked_texts("read_experiment", "changes", given, "['training.lr=0.1']")
    changed = [_change(path, text) for text in texts]
    for keys, value in changed:
        if keys[0] in OWN_KEYS:
            _put(content, keys, value)
    own = {key: content.pop(key) for key in OWN_KEYS if key in content}
    above = own.pop("panel", [{}])
    laid = _laid(path, content, above, changed)
    found = [_panel(where, merged, seeds) for where, merged in laid.items()]
    for keys, value in leaves(content):
        if all(_holds(panel, keys) for panel in above):
            _check_replaced(keys, value, list(laid.values()), str(path))
    found = _selected(found, panels, path)
    if designs is not None:
        found = [_only(panel, designs, path) for panel in found]
    name = re.sub(r"[^A-Za-z0-9._-]", "-", path.stem).lstrip("._-") or "experiment"
    with _naming(str(path)):
        return Experiment.of({"name": name, **own, "panels": found})


def _laid(
    path: Path, base: dict[str, Any], panels: Any, changed: list[tuple[list[str], Any]]
) -> dict[str, dict[str, Any]]:
    """Merge every panel into the top of the file. Return them by their place, for messages."""
    if not isinstance(panels, list) or not all(isinstance(panel, dict) for panel in panels):
        raise ExperimentError(f"{path}: panels must be written as [[panel]] tables.")
    laid = {}
    for number, panel in enumerate(panels, start=1):
        with _naming(f"{path}: panel {number}"):
            check_keys(panel, Panel.known_keys())
        merged = _merged({"label": path.stem, "seeds": [0], **base}, panel)
        for keys, value in changed:
            if keys[0] not in OWN_KEYS:
                _put(merged, keys, value)
        laid[f"{path}: panel {number}" if len(panels) > 1 else str(path)] = merged
    return laid


def _panel(where: str, merged: dict[str, Any], seeds: str | None) -> Panel:
    """Make a panel from its merged tables; ``seeds`` replace its own."""
    given = (merged["seeds"], f"{where}: seeds") if seeds is None else (seeds, "--seeds")
    own_seeds = parsed_seeds(*given)
    with _naming(where):
        check_keys(merged, [*Panel.known_keys(), *OWN_KEYS])
        return Panel.of({**merged, "seeds": own_seeds})


def _selected(found: list[Panel], panels: str | None, path: Path) -> list[Panel]:
    """Return the panels with these labels, None for all; refuse a label that appears twice."""
    labels = [panel.label for panel in found]
    if len(set(labels)) < len(labels):
        raise ExperimentError(f"{path}: panels need labels that differ; got {', '.join(labels)}.")
    if panels is None:
        return found
    wanted = _chosen(panels, labels, f"--panels: {path}")
    return [panel for panel in found if panel.label in wanted]


def parsed_seeds(given: object, owner: str) -> list[int]:
    """Read seeds from a list, or from text such as ``0-4,7``.

    Examples
    --------
    >>> parsed_seeds("0-2,7", "--seeds")
    [0, 1, 2, 7]
    """
    seeds: list[int] = []
    entries = given.split(",") if isinstance(given, str) else given
    if not isinstance(entries, list):
        entries = [entries]
    for entry in entries:
        match = re.fullmatch(r"\s*(\d{1,20})(?:\s*-\s*(\d{1,20}))?\s*", _short(entry))
        if match is None or isinstance(entry, bool):
            raise ExperimentError(
                f"{owner}: must be whole numbers, as 0-4 or 0,3; got {brief(entry)}. Write them so."
            )
        first, last = int(match[1]), int(match[2] or match[1])
        if not first <= last < first + LARGEST_SEED_LIST:
            raise ExperimentError(
                f"{owner}: a range goes from low to high, over at most {LARGEST_SEED_LIST} seeds; "
                f"got {entry!r}. Write it as 0-4."
            )
        seeds.extend(range(first, last + 1))
    if seeds and max(seeds) >= 2**63:
        raise ExperimentError(f"{owner}: a seed must be below 2^63; got {max(seeds)}. Lower it.")
    if len(set(seeds)) < len(seeds) or not seeds:
        raise ExperimentError(f"{owner}: needs at least one seed, each once; got {brief(given)}.")
    return seeds


def _short(entry: object) -> str:
    """Convert an entry to text. Python cannot convert integers of thousands of digits."""
    return "" if isinstance(entry, int) and abs(entry) >= 2**70 else str(entry)


def _toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        reason = reason_of(error)
        raise ExperimentError(f"{path}: cannot be read ({reason}). Check the path.") from error
    except RecursionError as error:
        raise ExperimentError(
            f"{path}: is not a TOML file (its lists are too deep). Fix it."
        ) from error
    except ValueError as error:  # bad TOML, bad UTF-8, or an integer with too many digits
        raise ExperimentError(f"{path}: is not a TOML file ({error}). Fix that line.") from error


def _change(path: Path, text: str) -> tuple[list[str], Any]:
    """Read ``key.key=value``. A value that is not TOML is text."""
    key, given, value = text.partition("=")
    keys = [part.strip() for part in key.split(".")]
    if not given or not all(keys) or keys[0] in ("design", "panel"):
        raise ExperimentError(
            f"--set: must be as training.lr=0.1, and no design or panel; got {brief(text)}. "
            f"Designs are chosen with --designs; for more, edit a copy of {path}."
        )
    try:
        found = tomllib.loads(f"x = {value}")
    except tomllib.TOMLDecodeError:
        return keys, value.strip()
    except (ValueError, RecursionError) as error:
        raise ExperimentError(
            f"--set: {brief(text)} cannot be read ({error}). Write a shorter value."
        ) from error
    if len(found) > 1:
        raise ExperimentError(
            f"--set: changes one value; got {brief(text)}. Give it once for each."
        )
    return keys, found["x"]


def _put(content: dict[str, Any], keys: list[str], value: Any) -> None:
    for key in keys[:-1]:
        below = content.setdefault(key, {})
        if not isinstance(below, dict):
            raise ExperimentError(
                f"--set: {key} is not a table, so it has no {'.'.join(keys)}. Set {key} itself."
            )
        content = below
    content[keys[-1]] = value


def _merged(base: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Merge two tables key by key; ``above`` wins. Return a new table."""
    merged = {
        key: _merged(value, {}) if isinstance(value, dict) else value for key, value in base.items()
    }
    for key, value in above.items():
        both = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = _merged(merged[key], value) if both else value
    return merged


def leaves(content: Mapping[str, Any], *above: str) -> Iterator[tuple[list[str], Any]]:
    """Yield every value of nested tables with its keys."""
    for key, value in content.items():
        if isinstance(value, dict) and value:
            yield from leaves(value, *above, key)
        else:
            yield [*above, key], value


def _holds(panel: Any, keys: list[str]) -> bool:
    """Return whether a panel replaces the value at these keys."""
    if not isinstance(panel, dict) or not keys:
        return True
    return keys[0] in panel and _holds(panel[keys[0]], keys[1:])


def _check_replaced(keys: list[str], value: Any, panels: list[dict[str, Any]], where: str) -> None:
    """Refuse a replaced value that would be wrong in every panel."""
    if keys == ["seeds"]:
        parsed_seeds(value, f"{where}: seeds")
        return
    complaints = []
    for panel in panels:
        kept = _merged(panel, {"seeds": [0]})
        _put(kept, keys, value)
        complaints.append(_complaint(keys, kept))
    if all(complaints):
        raise ExperimentError(f"{where}: {complaints[0]}")


def _complaint(keys: list[str], content: dict[str, Any]) -> str | None:
    """Return the error of one value of a panel. Ignore errors that it causes elsewhere."""
    try:
        Panel.of(content)
    except FedcohortError as error:
        text, key = str(error), ".".join(keys)
        names_it = text.startswith(key) or f"{key!r}" in text or f" {keys[-1]} must " in text
        return text if names_it else None
    return None


def _only(panel: Panel, wanted: str, path: Path) -> Panel:
    names = [name for entry in panel.design for name in (entry.label, entry.recipe)]
    kept = _chosen(wanted, names, f"--designs: {path}")
    labels = {entry.label for entry in panel.design}
    recipes = set(kept) - labels  # by default, a plain recipe's label is its name
    design = [e for e in panel.design if e.label in kept or e.recipe in recipes]
    return replace(panel, design=design)


def _chosen(wanted: str, names: list[str], owner: str) -> list[str]:
    """Split names at commas. A name may itself contain commas."""
    if not isinstance(wanted, str) or not wanted.strip():
        raise ExperimentError(
            f"{owner}: needs labels, separated by commas; got {brief(wanted)}. Pass text."
        )
    chosen, rest = [], wanted.strip()
    while rest:
        fits = [name for name in names if f"{rest},".startswith(f"{name},")]
        if not fits:
            name = rest.partition(",")[0].strip()
            raise ExperimentError(
                f"{owner} has no {brief(name)}; it has {', '.join(dict.fromkeys(names))}. Choose "
                f"among these.{did_you_mean(name, names)}"
            )
        chosen.append(max(fits, key=len))
        rest = rest[len(chosen[-1]) + 1 :].strip()
    return chosen


@contextmanager
def _naming(where: str) -> Iterator[None]:
    """Name the file and panel in errors."""
    try:
        yield
    except FedcohortError as error:
        raise ExperimentError(f"{where}: {error}") from None
