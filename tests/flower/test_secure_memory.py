"""The memory of a server: with a secure sum, no update of a single client is in it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

pytest.importorskip("flwr", reason="the extra 'flower' is not installed")

from fedcohort.flower import secure_aggregation_mod
from flower.federation import client_app, grid_of, update_of
from flower.piped_server import serve

SIZES = [50, 30, 20, 70, 10, 40]
#: Bytes of memory that are read at once; a pattern may lie on two blocks.
BLOCK, LAP = 2**24, 64


def memory_of(pid: int) -> Iterator[bytes]:
    """Yield what a process can write to, block by block."""
    with Path(f"/proc/{pid}/mem").open("rb", buffering=0) as memory:
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            span, rights, *_ = line.split()
            start, end = (int(each, 16) for each in span.split("-"))
            if not rights.startswith("rw"):
                continue
            for place in range(start, end, BLOCK):
                try:
                    memory.seek(place)
                    yield memory.read(min(BLOCK + LAP, end - place))
                except (OSError, ValueError, OverflowError):
                    break  # a part of the kernel's


def seen(pid: int) -> dict[int, set[str]]:
    """Return whose update a process holds, and how it is written there."""
    forms: dict[tuple[int, str], bytes] = {}
    for client in range(6):
        update = update_of(client)[:6]
        share = update.astype(np.float64) * SIZES[client] / max(SIZES)
        written: dict[str, NDArray[Any]] = {
            "floats": update,
            "doubles": update.astype(np.float64),
            "share": share,
        }
        forms |= {(client, name): each.tobytes() for name, each in written.items()}
    found: dict[int, set[str]] = {}
    for block in memory_of(pid):
        for (client, name), pattern in forms.items():
            if pattern in block:
                found.setdefault(client, set()).add(name)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("is_secure", [True, False])
def test_the_server_process_holds_no_update_of_a_single_client(is_secure: bool) -> None:
    """Its memory is searched when all masked vectors are there, and at the end.

    Without masks the same search finds all of them.
    """
    if not Path(f"/proc/{os.getpid()}/mem").exists():
        pytest.skip("this system does not show the memory of processes")
    mods: list[Any] = [secure_aggregation_mod] if is_secure else []
    nodes = grid_of(app=client_app(sizes=SIZES, mods=mods))
    here, there = get_context("spawn").Pipe()
    server = get_context("spawn").Process(target=serve, args=(there, is_secure))
    server.start()
    there.close()
    searches: list[dict[int, set[str]]] = []
    assert server.pid is not None

    while True:
        question, *rest = here.recv()
        if question == "nodes":
            here.send(list(nodes.partitions))
        elif question == "push":
            if any("unmask" in str(each.content) for each in rest[0]):
                searches.append(seen(server.pid))
            nodes.push_messages(rest[0])
            about = [each.metadata for each in rest[0]]
            here.send({each.dst_node_id: each.message_id for each in about})
        elif question == "pull":
            here.send(list(nodes.pull_messages(rest[0])))
        else:
            searches.append(seen(server.pid))
            here.send(None)
            break
    server.join()

    assert server.exitcode == 0
    if is_secure:
        assert searches == [{}, {}]
    else:
        assert set(searches[-1]) == set(range(6))
