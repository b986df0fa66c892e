"""``fedcohort watch``: show a run in the browser while it goes on."""

from __future__ import annotations

import signal
from contextlib import suppress
from pathlib import Path
from typing import Annotated

from fedcohort._lazy import import_extra
from fedcohort.cli.options import RUNS, a_run_folder, argument, latest_run, option
from fedcohort.errors import InputError
from fedcohort.participation import read_participation

PORT_HELP = "The port of the page; 0 takes one that is free."


def watch(
    folder: Annotated[
        Path | None,
        argument(
            "[DIR]",
            f"A run folder, which may not be there yet, or the log of a server, whose audit is "
            f"shown. Default: the latest run under ./{RUNS}.",
            a_run_folder,
        ),
    ] = None,
    port: Annotated[int, option("--port", "N", PORT_HELP, default=True, least=0, most=65535)] = 0,
) -> None:
    """Show a run, or the audit of a log, in the browser while it goes on.

    The page is served on this machine only, at the address that is printed. Ctrl-C ends it; the run
    goes on. To keep the page, use: fedcohort report
    """
    chosen = folder or latest_run("watch")
    from fedcohort.report.watch import WatchServer, is_log

    if not is_log(chosen):
        import_extra("plotly.offline", extra="report", owner="watch")
        import_extra("pyarrow", extra="sim", owner="watch")
    elif chosen.is_file() and chosen.stat().st_size:
        read_participation(chosen)  # refuse another file at once

    try:
        server = WatchServer(chosen, port)
    except OSError as error:
        reason = str(error.strerror).lower()
        raise InputError(
            f"watch: port {port} cannot be used ({reason}). Choose another with --port."
        ) from error
    # A shell that starts a command in the background lets it ignore Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with server, suppress(KeyboardInterrupt):
        print(f"{chosen}: {server.address}\nCtrl-C ends this; the run goes on.", flush=True)
        server.serve_forever()
