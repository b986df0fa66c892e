"""fedcohort watch: the page follows a run, on this machine only."""

from __future__ import annotations

import http.client
import json
import shutil
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="the extra 'sim' is not installed")
pytest.importorskip("plotly", reason="the extra 'report' is not installed")

from chromium import CHROMIUM
from command_line import refused, run
from fedcohort import Selector, SizeClustered
from fedcohort.experiments import Results
from fedcohort.report.watch import WatchServer
from small_runs import go_on, make_folder, small_run, start, truncate

Capture = pytest.CaptureFixture[str]


@contextmanager
def serving(path: Path) -> Iterator[WatchServer]:
    """Serve a run folder in a thread of this process."""
    with WatchServer(path) as server:
        thread = Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def get(server: WatchServer, path: str, host: str | None = None) -> tuple[int, str]:
    """Ask the server as if it had the name ``host``."""
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=30)
    connection.request("GET", path, headers={} if host is None else {"Host": host})
    answer = connection.getresponse()
    content = answer.read().decode()
    connection.close()
    return answer.status, content


def state(server: WatchServer) -> dict[str, str]:
    return dict(json.loads(get(server, "/state")[1]))


def test_a_run_is_followed_from_before_it_begins_to_its_end(tmp_path: Path) -> None:
    path = tmp_path / "run"
    with serving(path) as server:
        nothing, waiting = state(server), get(server, "/")[1]
        make_folder(tmp_path)
        made = state(server)
        go_on(path, rounds=2)
        begun, page = state(server), get(server, "/")[1]
        again = state(server)
        go_on(path)
        ended = state(server)

    assert nothing["text"].startswith(f"There is no run in {path} yet.")
    assert f"There is no run in {path} yet." in waiting
    assert made["text"].startswith(f"The run in {path} has no results yet.")
    assert begun["text"].startswith("The run is interrupted: 8 of 24 rounds over all designs")
    assert f'const WATCHED = "{begun["version"]}";' in page
    assert "connect-src 'self';" in page
    assert again == begun
    assert ended["text"] == "The run is complete: 24 rounds over all designs and seeds."
    assert len({each["version"] for each in (nothing, made, begun, ended)}) == 4


def test_a_folder_that_cannot_be_read_leaves_the_last_page(
    two_panels: Results, tmp_path: Path
) -> None:
    path = shutil.copytree(two_panels.folder.path, tmp_path / "run")
    table = path / "units" / "000" / "rounds.parquet"
    whole = table.read_bytes()
    with serving(path) as server:
        before, page = state(server), get(server, "/")[1]
        truncate(table)
        damaged, same = state(server), get(server, "/")[1]
        table.write_bytes(whole)
        mended = state(server)

    assert "rounds.parquet: is damaged" in damaged["text"]
    assert (damaged["version"], same) == (before["version"], page)
    assert mended["text"] == before["text"]


def test_other_paths_and_other_names_of_this_machine_are_refused(partition: Results) -> None:
    with serving(partition.folder.path) as server:
        port = server.server_port
        codes = [
            get(server, "/run.json")[0],
            get(server, "/../run.json")[0],
            get(server, "/", host="example.org")[0],
            get(server, "/", host=f"example.org:{port}")[0],
            get(server, "/", host=f"localhost:{port}")[0],
        ]
        own = socket.gethostbyname(socket.gethostname())
        outside = socket.socket()
        outside.settimeout(2)
        reached = outside.connect_ex((own, port)) if own != "127.0.0.1" else 1
        outside.close()

    assert codes == [404, 404, 403, 403, 200]
    assert reached != 0


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine")
def test_the_page_loads_itself_again_and_keeps_what_was_chosen(
    browser: Any, tmp_path: Path
) -> None:
    path = small_run(tmp_path, rounds=3)
    errors: list[str] = []
    with serving(path) as server:
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto(server.address)
        page.get_by_label("similarity", exact=True).uncheck()
        page.check("#raw")
        page.fill("#client-search", "3")
        page.locator(".designs:visible thead button").nth(2).click()
        page.evaluate("scrollTo(0, 700)")
        before = page.locator("[data-block=answer] strong").inner_text()
        go_on(path)
        page.locator(".watch", has_text="complete").wait_for()
        after = page.locator("[data-block=answer] strong").inner_text()
        kept = [
            page.get_by_label("similarity", exact=True).is_checked(),
            page.is_checked("#raw"),
            page.input_value("#client-search"),
            page.locator("#client-table tbody tr").count(),
            page.locator(".designs:visible thead th").nth(2).get_attribute("aria-sort"),
            page.evaluate("scrollY > 0"),  # the answer above may be shorter or longer
        ]
    page.locator(".watch", has_text="has ended").wait_for()
    page.close()

    assert before.startswith("After 3 of 6 rounds")
    assert after.startswith("After 6 rounds")
    assert kept == [False, True, "3", 1, "ascending", True]
    assert errors == []


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine")
def test_a_page_that_waits_becomes_the_page_of_the_run(browser: Any, tmp_path: Path) -> None:
    with serving(tmp_path / "run") as server:
        page = browser.new_page()
        page.goto(server.address)
        waiting = page.inner_text("body")
        small_run(tmp_path)
        page.wait_for_selector("#client-table tbody tr")
        page.close()

    assert "There is no run in" in waiting


def test_the_command_says_the_address_and_ends_with_ctrl_c(partition: Results) -> None:
    process = start("watch", partition.folder.path)
    assert process.stdout is not None
    first, second = process.stdout.readline(), process.stdout.readline()
    address = first.rpartition(": ")[2].strip()
    port = int(address.rstrip("/").rpartition(":")[2])
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request("GET", "/")
    answer = connection.getresponse().read().decode()
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)

    assert first == f"{partition.folder.path}: http://127.0.0.1:{port}/\n"
    assert second == "Ctrl-C ends this; the run goes on.\n"
    assert answer.startswith("<!doctype html>")
    assert (process.returncode, out, err) == (0, "", "")


def test_a_port_that_is_taken_and_a_file_are_refused(
    partition: Results, tmp_path: Path, capsys: Capture
) -> None:
    with serving(partition.folder.path) as server:
        port = server.server_port
        taken = run(capsys, "watch", partition.folder.path, "--port", port)
    (tmp_path / "file").write_text("a,b\n1,2\n")

    assert refused(taken, f"watch: port {port} cannot be used", "Choose another with --port")
    assert refused(run(capsys, "watch", tmp_path / "file"), "needs columns of rounds and clients")


def test_without_a_name_and_without_a_run_there_is_nothing_to_watch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.chdir(tmp_path)

    assert refused(run(capsys, "watch"), "watch: needs a run; there is none under ./runs.")


def test_the_audit_of_a_log_follows_it(tmp_path: Path) -> None:
    log = tmp_path / "selections.jsonl"
    with serving(log) as server:
        waiting = state(server)
        selector = Selector(SizeClustered(2), {"Nice": 5, "Lyon": 3, "Brest": 2}, seed=0, log=log)
        versions = []
        for _ in range(2):
            cohort = selector.draw()
            selector.remember(dict.fromkeys(cohort.ids, np.zeros(1)))
            versions.append(state(server))
        code, page = get(server, "/")

    assert waiting["text"].startswith(f"There is no log {log} yet.")
    assert [each["text"] for each in versions] == [
        "1 round so far; the page follows the log.",
        "2 rounds so far; the page follows the log.",
    ]
    assert versions[0]["version"] != versions[1]["version"]
    assert code == 200
    assert "<h1>Who took part: selections.jsonl</h1>" in page
    assert f'const WATCHED = "{versions[1]["version"]}"' in page
