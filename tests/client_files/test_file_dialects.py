"""One list of hospitals, written as people and programs write such lists, is one population."""

import csv
import io
import json
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from command_line import refused, run
from fedcohort.client_files import read_clients
from fedcohort.client_files.words import CLIENTS, SAMPLES, USUAL
from fedcohort.population import Population

RNG = np.random.default_rng(300)
SIZES = [0, 5146, 1000, 999, 1234567, *RNG.integers(0, 30_000, 295).tolist()]
IDS = [f'Hôpital {k}, "Nice"; né|e' if k % 9 == 0 else f"Klinik Süd {k}" for k in range(300)]
GROUPS = [("Île-de-France", "Bayern", "Wales, North")[k % 3] for k in range(300)]
HOSPITALS = Population(SIZES, ids=IDS, groups=GROUPS)
EXTRA = [f"{k % 40}.5" for k in range(300)]


def table(
    delimiter: str = ",",
    *,
    header: str = "id size group",
    size: Callable[[int], str] = str,
    end: str = "\n",
    columns: Iterable[Iterable[str]] = (),
) -> str:
    file = io.StringIO(newline="")
    writer = csv.writer(file, delimiter=delimiter, lineterminator=end)
    writer.writerow(header.split())
    cells = zip(IDS, map(size, SIZES), GROUPS, *columns, strict=True)
    writer.writerows(cells)
    return file.getvalue()


def grouped(mark: str, decimals: str = "") -> Callable[[int], str]:
    return lambda size: f"{size:,}".replace(",", mark) + decimals


def workbook(size: Callable[[int], Any], *, sheets: int = 1) -> bytes:
    openpyxl = pytest.importorskip("openpyxl", reason="openpyxl reads and writes Excel files")
    book = openpyxl.Workbook()
    sheet = book.active
    sheet.append(["Hospital", "Region", None, "N Samples", "beds"])
    for each in zip(IDS, GROUPS, [None] * 300, map(size, SIZES), EXTRA, strict=True):
        sheet.append(each)
    for _ in range(sheets - 1):
        book.create_sheet().append(["something", "else"])
    file = io.BytesIO()
    book.save(file)
    return file.getvalue()


def records() -> str:
    names = ("client_id", "num_examples", "stratum", "ward")
    each = zip(IDS, SIZES, GROUPS, EXTRA, strict=True)
    return json.dumps([dict(zip(names, one, strict=True)) for one in each])


def turned() -> str:
    """Write the columns in another order, between others."""
    each = zip(EXTRA, GROUPS, SIZES, EXTRA, IDS, strict=True)
    lines = [["", "Region", "n-samples", "beds", "Site Name"], *map(list, each)]
    return "\n".join(
        "\t".join(f'"{str(c).replace(chr(34), chr(34) * 2)}"' for c in x) for x in lines
    )


DIALECTS: dict[str, Callable[[], str | bytes]] = {
    "UTF-8": table,
    "UTF-8 with a byte order mark": lambda: table().encode("utf-8-sig"),
    "UTF-16, little end first": lambda: b"\xff\xfe" + table("\t").encode("utf-16-le"),
    "UTF-16, big end first": lambda: b"\xfe\xff" + table().encode("utf-16-be"),
    "Windows-1252": lambda: table(";").encode("cp1252"),
    "semicolons": lambda: table(";"),
    "tabs": lambda: table("\t"),
    "pipes": lambda: table("|"),
    "a line that names the delimiter": lambda: "sep=;\r\n" + table(";", end="\r\n"),
    "lines of Windows": lambda: table(end="\r\n"),
    "lines of old Macs": lambda: table(end="\r"),
    "blank lines and lines of commas": lambda: "\n\n" + table() + ",,\n  \n",
    "spaces around values": lambda: table(size=lambda size: f"  {size} "),
    "5,146": lambda: table(size=grouped(",")),
    "5,146.00": lambda: table(";", size=grouped(",", ".00")),
    "5 146": lambda: table(size=grouped(" ")),
    "5 146,0": lambda: table(";", size=grouped(" ", ",0")),
    "5 146 with a no-break space": lambda: table(size=grouped("\u00a0")),
    "5 146 with a narrow no-break space": lambda: table(size=grouped("\u202f")),
    "5 146 with a thin space": lambda: table(size=grouped("\u2009")),
    "5'146": lambda: table(size=grouped("'")),
    "5'146 with a curly apostrophe": lambda: table(size=grouped("\u2019")),
    "5146.0": lambda: table(size=lambda size: f"{size}.0"),
    "5146,0": lambda: table(";", size=lambda size: f"{size},0"),
    "5.146e3": lambda: table(size=lambda size: f"{size:.7e}"),
    "usual names": lambda: table(header="Hospital_ID #Samples Region"),
    "other columns": lambda: table(header="name COUNT cluster beds", columns=[EXTRA]),
    "another order": turned,
    "JSON records": records,
    "JSON columns": lambda: json.dumps({"sizes": SIZES, "ids": IDS, "groups": GROUPS, "year": 1}),
    "JSON objects": lambda: json.dumps(
        {
            "n_samples": dict(zip(IDS, SIZES, strict=True)),
            "group": dict(reversed(list(zip(IDS, GROUPS, strict=True)))),
        }
    ),
    "Excel": lambda: workbook(int),
    "Excel, text": lambda: workbook(grouped(",")),
    "Excel, several sheets": lambda: workbook(float, sheets=3),
}


def agree(one: Population, other: Population) -> bool:
    return (
        one.sizes.tolist() == other.sizes.tolist()
        and list(one.ids) == list(other.ids)
        and one.groups == other.groups
    )


def saved(path: Path, content: str | bytes) -> str:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return str(path)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_every_dialect_gives_the_same_population(dialect: str, tmp_path: Path) -> None:
    read = read_clients(saved(tmp_path / "hospitals", DIALECTS[dialect]()))

    assert agree(read, HOSPITALS)


@pytest.mark.parametrize(
    ("mark", "decimals", "thousands"),
    [(".", "", "."), (".", ",00", "."), (",", ".000", ","), ("'", ",000", "'"), (" ", ".000", " ")],
)
def test_a_named_thousands_mark_leaves_nothing_unclear(
    mark: str, decimals: str, thousands: str, tmp_path: Path
) -> None:
    path = saved(tmp_path / "hospitals.csv", table(";", size=grouped(mark, decimals)))

    assert agree(read_clients(path, thousands=thousands), HOSPITALS)


@pytest.mark.parametrize(
    ("content", "thousands", "sizes"),
    [
        ("5,146\n1,000\n", ",", [5146, 1000]),
        ("5 146\n12\n", None, [5146, 12]),
        ("size\n5,146\n12\n", None, [5146, 12]),
        ("size\n5,000\n5,0\n", None, [5, 5]),  # the comma is a decimal mark in 5,0
        ("size\n5,000\n", None, [5000]),
        ("size\n1234.000\n0.000\n", None, [1234, 0]),
        ("size\n1.000\n", ",", [1]),
        ('["5,146", 3, 2.0]', None, [5146, 3, 2]),
    ],
)
def test_lists_without_ids(
    content: str, thousands: str | None, sizes: list[int], tmp_path: Path
) -> None:
    read = read_clients(saved(tmp_path / "sizes", content), thousands=thousands)

    assert agree(read, Population(sizes))


@pytest.mark.parametrize(
    "content", ['{"a": 5, "b": 3}', '{"sizes": {"a": 5, "b": 3}}', '{"a": "5", "b": 3.0}']
)
def test_json_objects_name_the_clients(content: str, tmp_path: Path) -> None:
    read = read_clients(saved(tmp_path / "sizes.json", content))

    assert agree(read, Population([5, 3], ids=["a", "b"]))


def test_a_note_says_what_else_a_json_object_has(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = saved(tmp_path / "sizes.json", '{"year": 2026, "sizes": [5, 3], "of": "beds"}')

    result = run(capsys, "plan", path, "-m", 1)

    assert result.err.endswith("sizes.json: ignored year, of: no list.\n")


@pytest.mark.parametrize(
    ("header", "options", "note"),
    [
        ("id,size,group", [], ""),
        ("ID,Sizes,Group", [], ""),
        ("id,size,beds", [], "sizes.csv: read size, id; ignored beds.\n"),
        ("site,n,beds", [], "sizes.csv: read n as size, site as id; ignored beds.\n"),
        ("hospital,count,name", [], "sizes.csv: read count as size, name as id; ignored hospital."),
        ("client,size,samples", [], "sizes.csv: read size, client as id; ignored samples.\n"),
        ("cluster,size,region", [], "read size, region as group; ignored cluster.\n"),
        ("ward,beds,id", ["--size-column", "Beds"], "read beds as size, id; ignored ward.\n"),
        ("id,beds,group", ["--size-column", "beds"], ""),
        (
            "site,size,id",
            ["--id-column", "site", "--group-column", "id"],
            "",
        ),
        (",size,", [], "sizes.csv: read size; ignored (column 1), (column 3).\n"),
    ],
)
def test_a_note_says_which_columns_were_read(
    header: str,
    options: list[str],
    note: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    saved(Path("sizes.csv"), f"{header}\na,5,x\nb,3,y\n")

    result = run(capsys, "plan", "sizes.csv", "-m", 1, *options)

    assert result.code == 0
    assert note in result.err
    assert bool(note) == bool(result.err)


def test_notes_tell_of_guesses_about_text_and_groups(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = saved(tmp_path / "a.csv", "id,size,group\nMünchen,5,x\nb,3,\n".encode("cp1252"))

    result = run(capsys, "plan", path, "-m", 1)

    assert (
        "a.csv: read as Windows-1252 text, because it is not UTF-8. If names look wrong"
        in result.err
    )
    assert "a.csv: 1 without a group: unlabelled.\n" in result.err


def test_a_note_names_the_sheet_if_there_are_several(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = run(capsys, "plan", saved(tmp_path / "a.xlsx", workbook(int, sheets=3)), "-m", 1)

    assert "a.xlsx: read sheet 'Sheet' of Sheet, Sheet1, Sheet2.\n" in result.err


@pytest.mark.parametrize("command", ["plan", "compare"])
def test_both_commands_take_all_options(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = saved(tmp_path / "sizes.csv", "who,beds,where\na,5.146,x\nb,1.000,y\n")
    columns = ("--size-column", "beds", "--id-column", "who", "--group-column", "where")

    result = run(capsys, command, path, "-m", 1, "-d", "size", *columns, "--thousands", ".")

    assert (result.code, result.err) == (0, "")
    assert ("6,146 samples" if command == "compare" else "5146") in result.out


def test_the_json_of_compare_keeps_its_keys(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = saved(tmp_path / "hospitals.csv", table(";", size=grouped(","), header="site n region"))

    result = run(capsys, "compare", path, "-m", 10, "-d", "multinomial,size", "--json")

    content = json.loads(result.out)
    assert {"n_clients", "total", "cohort_size", "designs"} <= content.keys()
    assert (content["n_clients"], content["total"]) == (300, sum(SIZES))
    assert "read n as size, site as id, region as group." in result.err


def test_a_run_folder_takes_no_columns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = run(capsys, "compare", tmp_path, "--size-column", "n")

    assert refused(result, "compare: a run folder needs no", "Drop them.")


@pytest.mark.parametrize(
    ("role", "words"), [("size", SAMPLES), ("id", CLIENTS), ("group", ("group", "region"))]
)
def test_the_documentation_lists_the_usual_names_in_their_order(
    role: str, words: tuple[str, ...]
) -> None:
    page = Path(__file__).parents[2] / "docs" / "reference" / "command-line.md"
    row = re.search(rf"^\| {role} column \| (.*) \|$", page.read_text("utf-8"), re.MULTILINE)
    assert row

    names = [name.replace("_", "") for name in re.findall(r"`(\w+)`", row[1])]
    places = [USUAL[role].index(name) for name in names]

    assert len(names) >= 4
    assert role == "size" or places == sorted(places)  # two columns of sizes are refused
    assert [word for word in words if word not in row[1].replace("data point", "datapoint")] == []
