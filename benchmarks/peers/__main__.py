"""fedcohort's simulator side by side with others; run as ``python -m peers``.

The paper's figure 1 on one CPU thread: every peer in an environment of its own, in turns, with
and without evaluation after each round. A peer that cannot be installed is named, and the others
go on. Installing what is not there yet takes some minutes, measuring about ten.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from measurement import machine
from peers.contract import Task
from peers.environments import NotInstalledError, python_of
from peers.measuring import measure
from peers.peer_list import PEERS, Peer
from peers.tables import MODES, block, put_into
from peers.workload import Federation

ROUNDS, REPETITIONS = 20, 5


def main() -> None:
    """Parse, measure, print."""
    options = arguments()
    results = json.loads(options.table.read_text()) if options.table else measure_all(options)
    text = block(results)
    if options.page:
        try:
            options.page.write_text(put_into(options.page.read_text(), text))
        except ValueError as error:
            say(f"{options.page}: {error}")
            sys.exit(2)
    print(text)


def measure_all(options: argparse.Namespace) -> dict[str, Any]:
    """Install, let all do the work in turns, and keep what they say."""
    start = time.perf_counter()
    build = options.build.absolute()
    build.mkdir(parents=True, exist_ok=True)
    data, source = data_file(build, synthetic=options.synthetic)
    wanted = [peer for peer in PEERS if peer.name in ("fedcohort", *options.only)]
    pythons, found = install(wanted, build)
    installed, load = time.perf_counter(), os.getloadavg()[0]
    for seed in range(options.repetitions):
        for evaluate in MODES.values():
            for peer, python in pythons.items():
                task = Task(data, options.rounds, seed, evaluate)
                run = {"seed": seed, "evaluate": evaluate, **measure(peer, python, task)}
                found[peer.name].setdefault("runs", []).append(run)
                say(f"{peer.shown}, repetition {seed + 1}, {_seen(run)}")
    results = {
        "machine": {**machine(), "load_before": round(load, 2)},
        "command": " ".join(["python -m peers", *sys.argv[1:]]),
        "install_seconds": round(installed - start),
        "measure_seconds": round(time.perf_counter() - installed),
        "workload": {
            "data": source,
            "rounds": options.rounds,
            "repetitions": options.repetitions,
        },
        "peers": found,
    }
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(results, indent=1) + "\n")
    return results


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="peers", description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="rounds of a run")
    parser.add_argument("--repetitions", type=int, default=REPETITIONS)
    parser.add_argument(
        "--only", nargs="*", default=[p.name for p in PEERS], choices=[p.name for p in PEERS]
    )
    parser.add_argument("--build", type=Path, default=Path("build/peers"), help="environments")
    parser.add_argument("--out", type=Path, help="keep everything as JSON in this file")
    parser.add_argument("--page", type=Path, help="put the tables between this page's markers")
    parser.add_argument("--synthetic", action="store_true", help="do not look for MNIST")
    parser.add_argument("--table", type=Path, help="measure nothing: take kept JSON")
    options = parser.parse_args()
    if options.rounds < 3 or options.repetitions < 1:
        parser.error("needs at least 3 rounds and 1 repetition.")
    return options


def data_file(build: Path, *, synthetic: bool) -> tuple[Path, str]:
    """Return the file of data and what is in it; MNIST is looked for until it was found."""
    from peers.data_file import make_federation  # needs PyTorch; the tables do not

    path = build / "data.npz"
    source = Federation.load(path).source if path.exists() else ""
    if source != ("synthetic" if synthetic else "mnist"):
        federation = make_federation(synthetic=synthetic)
        federation.save(path)
        source = federation.source
    if source == "synthetic":
        say("data: synthetic images of MNIST's shape; MNIST was not looked for or not found")
    return path, source


def install(wanted: list[Peer], build: Path) -> tuple[dict[Peer, Path], dict[str, Any]]:
    """Return the interpreters of those that can be installed, and the reasons of the others."""
    pythons: dict[Peer, Path] = {}
    found: dict[str, Any] = {}
    for peer in wanted:
        if peer.own_environment:
            say(f"{peer.shown}: an environment in {build / peer.name}, made if it is not there")
        try:
            pythons[peer] = python_of(peer, build)
            found[peer.name] = {}
        except NotInstalledError as error:
            found[peer.name] = {"not_installed": str(error)}
            say(f"{peer.shown} could not be installed: {error}")
    return pythons, found


def say(line: str) -> None:
    """Tell how far it is."""
    print(line, file=sys.stderr, flush=True)


def _seen(run: dict[str, Any]) -> str:
    kind = "with evaluation" if run["evaluate"] else "training alone"
    if "error" in run:
        return f"{kind}: {run['error']}"
    seconds = sum(run["round_seconds"]) / len(run["round_seconds"])
    return f"{kind}: {1e3 * seconds:.0f} ms a round, loss {run['loss']:.3f}"


if __name__ == "__main__":
    main()
