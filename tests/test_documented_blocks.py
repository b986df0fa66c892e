"""What runs the pages sees what is wrong with them."""

import socket
from pathlib import Path

import pytest

from documented_blocks import Block, blocks_of, commands_of, run_page
from flower_programs import free_port, is_listening


def play(folder: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    page = folder / "page.md"
    page.write_text(text)
    monkeypatch.chdir(folder)
    run_page(page, folder)


def fenced(info: str, text: str) -> str:
    return f"Some words.\n\n```{info}\n{text}```\n\nMore words.\n"


def test_blocks_are_found_with_language_title_and_line() -> None:
    text = (
        fenced('toml title="a.toml"', "x = 1\n")
        + "1. An item:\n\n   ```sh\n   ls\n     -l\n   ```\n"
    )

    assert blocks_of(text) == [
        Block("toml", "a.toml", "x = 1\n", 4),
        Block("sh", "", "ls\n  -l\n", 11),
    ]


def test_commands_have_the_output_below_them() -> None:
    (block,) = blocks_of(fenced("console", "$ echo a \\\n    b\na b\n$ true\n$ echo c\nc\n"))

    found = [(command.text, command.output) for command in commands_of(block)]

    assert found == [("echo a \\\n    b", "a b\n"), ("true", ""), ("echo c", "c\n")]


def test_a_command_reads_on_up_to_the_line_that_ends_its_input() -> None:
    (block,) = blocks_of(fenced("console", "$ cat <<END\na\n\nb\nEND\na\n\nb\n$ echo c\nc\n"))

    found = [(command.text, command.output) for command in commands_of(block)]

    assert found == [("cat <<END\na\n\nb\nEND", "a\n\nb\n"), ("echo c", "c\n")]


def test_a_whole_page_runs_in_its_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (
        fenced('python title="own/mine.py"', "number = 7\n")
        + fenced("python", "from pathlib import Path\nfound = Path('own/mine.py').read_text()\n")
        + fenced("pycon", ">>> found\n'number = 7\\n'\n>>> other = 3\n")
        + fenced("python", ">>> other\n3\n>>> from own.mine import number\n>>> number\n7\n")
        + fenced("console", "$ cat own/mine.py; echo 0.123 s\nnumber   = 7\n... s\n")
        + fenced('sh title="not run: it would end badly"', "false\n")
        + fenced("toml", "[data]\nx = 1\n")
    )

    play(tmp_path, text, monkeypatch)


@pytest.mark.parametrize(
    ("info", "text"),
    [
        ("python", ">>> 1 + 1\n3\n"),
        ("pycon", ">>> 1 + 1\n3\n"),
        ("python", "assert 1 + 1 == 3\n"),
        ("console", "$ echo a\nb\n"),
        ("console", "$ echo a\n"),
        ("console", "$ echo size 0.5 7 us\nsize 0.6 304 us\n"),
        ("console", "$ true\na\n"),
        ("console", "$ false\n"),
        ("console", "$ echo a; false\na\n"),
        ("console", "$ echo 'who: wrong' >&2; false\nwho: right\n"),
        ("console", "$ fedcohort --version\nfedcohort 0\n"),
        ("console", "$ fedcohort plan nothing.csv --cohort-size 2\n"),
        ("toml", "x = \n"),
    ],
)
def test_what_is_wrong_is_seen(
    info: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises((AssertionError, ValueError)):
        play(tmp_path, fenced(info, text), monkeypatch)


def test_times_at_the_ends_of_lines_may_differ(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    play(tmp_path, fenced("console", "$ echo size 0.5 7.25 ms\nsize 0.5 304 us\n"), monkeypatch)


def test_a_console_block_needs_a_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=r"line 4: a console block must begin with a \$ command"):
        play(tmp_path, fenced("console", "echo a\n"), monkeypatch)


def test_a_sentence_of_a_command_that_fails_can_be_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "$ echo a; echo 'who: what is needed' >&2; exit 2\na\nwho: what is needed\n"

    play(tmp_path, fenced("console", text), monkeypatch)


@pytest.mark.parametrize("more", ["", " 2>&1 | cat"])
def test_the_command_line_says_here_what_it_says_in_a_shell(
    more: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = "fedcohort: no such.csv: cannot be read (no such file or directory). Check the path.\n"
    text = f"$ fedcohort plan \\\n    'no such.csv' --cohort-size 2{more}\n{shown}"

    play(tmp_path, fenced("console", text), monkeypatch)


#: Says when it is there, and when it is asked to stop.
PATIENT = """
import signal, sys, time
def leave(*_):
    print("leaving", flush=True)
    sys.exit(130)
signal.signal(signal.SIGINT, leave)
print("working", flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize(("end", "passes"), [("leaving", True), ("staying", False)])
def test_control_c_is_pressed_where_the_page_shows_it(
    end: str, passes: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = fenced('python title="patient.py"', PATIENT)
    text += fenced("console", f"$ python patient.py\nworking\n^C\n{end}\n")

    if passes:
        play(tmp_path, text, monkeypatch)
        return
    with pytest.raises(AssertionError, match="leaving"):
        play(tmp_path, text, monkeypatch)


def test_a_command_that_ends_before_control_c_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(AssertionError, match="ended before Ctrl-C"):
        play(tmp_path, fenced("console", "$ echo a\nb\n^C\n"), monkeypatch)


#: Sends its port to whoever connects.
SERVER = """
import socketserver, sys
class Answer(socketserver.StreamRequestHandler):
    def handle(self):
        self.wfile.write(sys.argv[2].encode())
socketserver.TCPServer.allow_reuse_address = True
socketserver.TCPServer(("127.0.0.1", int(sys.argv[2])), Answer).serve_forever()
"""
CLIENT = """
import socket, sys
with socket.create_connection(("127.0.0.1", int(sys.argv[1]))) as link:
    print("found" if link.recv(9).decode() == sys.argv[1] else "lost")
"""


def page_with_a_server(port: int) -> str:
    return (
        fenced('python title="server.py"', SERVER)
        + fenced('python title="client.py"', CLIENT)
        + fenced('sh title="in a terminal of its own"', f"python server.py --port {port}\n")
        + fenced("console", f"$ python client.py {port}\nfound\n")
    )


def test_a_command_in_a_terminal_of_its_own_stays_until_the_page_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = free_port()

    play(tmp_path, page_with_a_server(port), monkeypatch)

    assert not is_listening(port)


def test_ports_that_are_taken_are_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        play(tmp_path, page_with_a_server(other.getsockname()[1]), monkeypatch)


def test_a_server_that_does_not_start_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = fenced('sh title="in a terminal of its own"', "echo no such thing --port 9\n")

    with pytest.raises(AssertionError, match="no such thing"):
        play(tmp_path, text, monkeypatch)


def test_two_servers_on_one_port_are_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = page_with_a_server(free_port())

    with pytest.raises(AssertionError, match="uses ports that others have"):
        play(tmp_path, text + text, monkeypatch)
