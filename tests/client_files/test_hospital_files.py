"""Files as hospitals send them: a table of dialects, each with its clients and what is noted."""

import io
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import date, datetime
from pathlib import Path
from typing import Any

import pytest

from fedcohort import read_clients
from fedcohort.client_files.clients import ReadClients, read
from fedcohort.client_files.table import Reading
from fedcohort.errors import InputError

SIZES = {"St. Mary": 412, "All Saints": 96, "Klinik am See": 1655, "Hôpital Sud": 276}
REGIONS = ("North", "North", "South", "South")
ROWS = [(name, region, size) for (name, size), region in zip(SIZES.items(), REGIONS, strict=True)]
TOTAL = sum(SIZES.values())
NUMBERED = dict(enumerate(SIZES.values()))
#: Shares of a hundred patients.
SHARES = {"St. Mary": 0.125, "All Saints": 0.25, "Klinik am See": 0.5, "Hôpital Sud": 0.125}


def lines(rows: Iterable[Iterable[object]], delimiter: str = ",", quote: bool = False) -> str:
    mark = '"' if quote else ""
    return "".join(delimiter.join(f"{mark}{cell}{mark}" for cell in row) + "\n" for row in rows)


def table(*header: str, delimiter: str = ",", size: Callable[[int], object] = str) -> str:
    """Write the hospitals: name and size, with three names also the region."""
    body = [
        (name, size(n)) if len(header) == 2 else (name, region, size(n)) for name, region, n in ROWS
    ]
    return lines([header, *body], delimiter)


def beside(header: str, *columns: Iterable[object], delimiter: str = ",") -> str:
    """Write columns beside each other."""
    return lines([header.split("|"), *zip(*columns, strict=True)], delimiter)


def grouped(mark: str, decimals: str = "") -> Callable[[int], str]:
    return lambda n: f"{n:,}".replace(",", mark) + decimals


def workbook(sheets: Mapping[str, list[Iterable[Any]]], *merged: str) -> bytes:
    """Write sheets; cells are merged in the last one."""
    openpyxl = pytest.importorskip("openpyxl", reason="openpyxl writes Excel files")
    book = openpyxl.Workbook()
    book.remove(book.active)
    for title, rows in sheets.items():
        sheet = book.create_sheet(title)
        for row in rows:
            sheet.append(list(row))
    for cells in merged:
        sheet.merge_cells(cells)
    file = io.BytesIO()
    book.save(file)
    return file.getvalue()


@dataclass(frozen=True)
class Dialect:
    """A file, the settings to read it, its clients, and parts of the notes."""

    content: str | bytes | Callable[[], bytes]
    clients: Mapping[Any, float] = field(default_factory=lambda: SIZES)
    groups: tuple[str, ...] | None = None
    notes: tuple[str, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)


HEADER = ("Hospital", "Region", "Patients")
COVER: list[Iterable[Any]] = [
    ("Patients per hospital",),
    ("Version", 3),
    ("Pages", 12),
    ("Date", date(2024, 5, 1)),
]
NAMES, NUMBERS = tuple(SIZES), tuple(SIZES.values())
DATES = ("01.05.2019", "13.06.2020", "30.11.2018", "02.02.2021")
OPENED = [datetime(2015 + k, 5, k) for k in range(1, 5)]
ISO = [f"{day:%Y-%m-%d}" for day in OPENED]
ZIPS, YEARS = (80331, 10115, 20095, 50667), (1901, 1956, 2003, 1988)
COMPACT = (20190501, 20200613, 20181130, 20210202)
AS_SIZE = "read Patients as size, Hospital as id, Region as group."

DIALECTS: dict[str, Dialect] = {
    # text
    "commas": Dialect(table("id", "size")),
    "semicolons in Windows-1252": Dialect(
        table("Hospital", "Patients", delimiter=";").encode("cp1252"), notes=("Windows-1252",)
    ),
    "tabs": Dialect(table(*HEADER, delimiter="\t"), groups=REGIONS, notes=(AS_SIZE,)),
    "pipes": Dialect(table("hospital", "n", delimiter="|")),
    "a byte order mark": Dialect(table("Hospital", "cases").encode("utf-8-sig")),
    "UTF-16": Dialect(b"\xff\xfe" + table("Hospital", "cases", delimiter="\t").encode("utf-16-le")),
    "lines of old Macs": Dialect(table("site", "patients").replace("\n", "\r")),
    "everything in quotes": Dialect(lines([("Site", "Cases"), *SIZES.items()], quote=True)),
    "a heading of two lines in quotes": Dialect(
        'Hospital,"Number of\npatients"\n' + lines(SIZES.items())
    ),
    "a line that names the delimiter": Dialect(
        "sep=;\n" + table("Hospital", "Patients", delimiter=";")
    ),
    "a delimiter at the end of lines": Dialect(
        lines([("Hospital", "Patients", ""), *((*row, "") for row in SIZES.items())])
    ),
    "sizes alone": Dialect(lines(zip(NUMBERS)), NUMBERED),
    "names and sizes without a header": Dialect(
        lines(SIZES.items()), notes=("read column 2 as size, column 1 as id.",)
    ),
    "sizes below a name": Dialect(lines([("Patients",), *zip(NUMBERS)]), NUMBERED),
    # numbers
    "1,655 in quotes": Dialect(
        lines([("id", "cases"), *((k, grouped(",")(n)) for k, n in SIZES.items())], quote=True)
    ),
    "1.655 between semicolons": Dialect(
        table("Klinik", "Fallzahl", delimiter=";", size=grouped(".")),
        notes=("read 1.655 as 1655",),
    ),
    "1.655,00": Dialect(table("Klinik", "Fälle", delimiter=";", size=grouped(".", ",00"))),
    "1 655 with a narrow space": Dialect(
        table("Hôpital", "Effectif", delimiter=";", size=grouped("\u202f"))
    ),
    "1'655": Dialect(table("Spital", "Patienten", size=grouped("'"))),
    "1655,0": Dialect(table("Klinik", "Patienten", delimiter=";", size=lambda n: f"{n},0")),
    # names of columns
    "patients": Dialect(table(*HEADER), groups=REGIONS, notes=(AS_SIZE,)),
    "cases": Dialect(table("site", "Cases"), notes=("read Cases as size, site as id.",)),
    "Effectif": Dialect(
        table("Hôpital", "Effectif", delimiter=";"), notes=("read Effectif as size",)
    ),
    "Anzahl Patienten": Dialect(table("Klinik", "Anzahl Patienten", delimiter=";")),
    "Nombre de patients": Dialect(table("Établissement", "Nombre de patients", delimiter=";")),
    "No. of patients (2024)": Dialect(table("Hospital", "No. of patients (2024)")),
    "PATIENT_COUNT": Dialect(table("HOSPITAL_ID", "PATIENT_COUNT")),
    "samples before patients": Dialect(
        beside("Hospital|Patients|Samples", NAMES, (9, 9, 9, 9), NUMBERS),
        notes=("read Samples as size, Hospital as id; ignored Patients.",),
    ),
    # the only column of whole numbers
    "beds": Dialect(
        table("Hospital", "Beds"),
        notes=("read Beds as size, Hospital as id.", "Beds is the only column of whole numbers"),
    ),
    "beside coordinates": Dialect(
        beside("Hospital|lat|lon|Discharges", NAMES, *2 * [(48.5, 47.25, 53.1, 43.7)], NUMBERS),
        notes=("ignored lat, lon",),
    ),
    "beside numbers that are no counts": Dialect(
        beside("No|Clinic|ZIP|Founded|Admissions", range(1, 5), NAMES, ZIPS, YEARS, NUMBERS),
    ),
    "beside dates": Dialect(beside("Clinic|Opened|Entries", NAMES, DATES, NUMBERS)),
    "beside dates without points": Dialect(beside("Clinic|Since|Entries", NAMES, COMPACT, NUMBERS)),
    "beside dates with hyphens": Dialect(beside("Clinic|Last visit|Entries", NAMES, ISO, NUMBERS)),
    # importance
    "percentages": Dialect(
        beside("Hospital|Share", NAMES, ("12.5 %", "25%", "50.0 %", "12.5%")),
        SHARES,
        notes=("read Share as importance, Hospital as id.",),
    ),
    "percentages with a decimal comma": Dialect(
        beside("Klinik|Anteil (%)", NAMES, ("12,5", "25", "50,0", "12,5"), delimiter=";"), SHARES
    ),
    "percentages that were rounded": Dialect(
        beside("Hospital|Percent", ("A", "B", "C"), ("33.3", "33.3", "33.3")),
        dict.fromkeys("ABC", 1 / 3),
    ),
    "shares of 1": Dialect(beside("Hospital|Weight", NAMES, (0.125, 0.25, 0.5, 0.125)), SHARES),
    "sizes before percentages": Dialect(
        beside("Hospital|n|%", NAMES, NUMBERS, (16.9, 3.9, 67.9, 11.3))
    ),
    # lines that are not clients
    "titles": Dialect(
        f"Annual report 2024,,\n,,\nSource: registry,,\n{table(*HEADER)}",
        groups=REGIONS,
        notes=("left out 2 titles: 'Annual report 2024' (line 1)",),
    ),
    "a title above names that are not usual": Dialect(
        "Annual report;;\n\n" + table("Clinic", "Bezirk", "Betten", delimiter=";"),
        notes=("left out 1 title: 'Annual report' (line 1)",),
    ),
    "a comment above": Dialect("# exported 2024-05-01\n" + table("site", "cases")),
    "a total": Dialect(
        table("Klinik", "Patienten") + f"Gesamt,{TOTAL}\n", notes=("1 total: 'Gesamt, 2439'",)
    ),
    "subtotals": Dialect(
        lines(
            [
                HEADER,
                *ROWS[:2],
                ("Subtotal North", "", 508),
                *ROWS[2:],
                ("Subtotal South", "", 1931),
                ("Total", "", TOTAL),
            ]
        ),
        groups=REGIONS,
        notes=("left out 3 totals",),
    ),
    "footnotes": Dialect(
        table(*HEADER) + "* estimated,,\nSource: Ministry of Health\n",
        groups=REGIONS,
        notes=("2 footnotes",),
    ),
    "units below the header": Dialect("Hospital,Patients\n,(n)\n" + lines(SIZES.items())),
    "a region above empty cells": Dialect(
        lines(
            [
                ("Region", "Hospital", "Patients"),
                ("North", *ROWS[0][::2]),
                ("", *ROWS[1][::2]),
                ("South", *ROWS[2][::2]),
                ("", *ROWS[3][::2]),
            ]
        ),
        groups=REGIONS,
        notes=("filled Region down",),
    ),
    # JSON
    "JSON records": Dialect(
        json.dumps([dict(zip(HEADER, row, strict=True)) for row in ROWS]), groups=REGIONS
    ),
    "JSON records in an object": Dialect(
        json.dumps(
            {"year": 2024, "hospitals": [{"name": k, "patients": n} for k, n in SIZES.items()]}
        )
    ),
    "JSON objects by name": Dialect(
        json.dumps({k: {"region": r, "cases": n} for k, r, n in ROWS}), groups=REGIONS
    ),
    "JSON sizes by name": Dialect(json.dumps(SIZES)),
    "JSON lines": Dialect(
        "".join(json.dumps({"site": k, "patients": n}) + "\n" for k, n in SIZES.items())
    ),
    "JSON lines with blank lines": Dialect(
        "\ufeff" + "\n\n".join(json.dumps(dict(zip(HEADER, row, strict=True))) for row in ROWS),
        groups=REGIONS,
    ),
    # Excel
    "Excel": Dialect(lambda: workbook({"Data": [HEADER, *ROWS]}), groups=REGIONS),
    "Excel below a cover": Dialect(
        lambda: workbook({"Cover": COVER, "Data": [HEADER, *ROWS]}),
        groups=REGIONS,
        notes=("read sheet 'Data' of Cover, Data.",),
    ),
    "Excel with a merged title": Dialect(
        lambda: workbook({"Data": [("Patients per hospital, 2024",), (), HEADER, *ROWS]}, "A1:C1"),
        groups=REGIONS,
    ),
    "Excel with merged regions": Dialect(
        lambda: workbook({"Data": [HEADER, *ROWS]}, "B2:B3", "B4:B5"), groups=REGIONS
    ),
    "Excel that starts in C4": Dialect(
        lambda: workbook({"Data": [(), (), (), *((None, None, *row) for row in [HEADER, *ROWS])]}),
        groups=REGIONS,
    ),
    "Excel with dates": Dialect(
        lambda: workbook(
            {"Data": [("Clinic", "Opened", "Entries"), *zip(NAMES, OPENED, NUMBERS, strict=True)]}
        )
    ),
    "Excel with numbers as text": Dialect(
        lambda: workbook(
            {
                "Data": [
                    ("Hospital", "Cases"),
                    *((k, grouped("\u00a0")(n)) for k, n in SIZES.items()),
                ]
            }
        )
    ),
    "Excel with percentages": Dialect(
        lambda: workbook({"Data": [("Hospital", "Share"), *SHARES.items()]}), SHARES
    ),
    "a sheet that is named": Dialect(
        lambda: workbook(
            {"2023": [("Hospital", "n"), ("A", 1), ("B", 1)], "2024": [HEADER, *ROWS]}
        ),
        groups=REGIONS,
        settings={"sheet": "2024"},
    ),
    "a header that is named": Dialect(
        "Hospital,n\nold,5\nClinic,Region,Patients,Beds\n" + lines((*row, 7) for row in ROWS),
        groups=REGIONS,
        settings={"header_row": 3},
    ),
}


#: Files of the second try: what they say is easy to read wrongly without a word.
DIALECTS |= {
    "beside averages, codes and flags": Dialect(
        beside(
            "Clinic|Mean age|IK|Teaching|Admissions",
            *(NAMES, (61, 55, 70, 49), (260100023, 260100034, 260100045, 260100056), (1, 0, 0, 1)),
            NUMBERS,
        ),
        notes=("read Admissions as size, Clinic as id; ignored Mean age, IK, Teaching.",),
    ),
    "Anzahl": Dialect(beside("IK|Name|Anzahl", (11, 12, 13, 14), NAMES, NUMBERS)),
    "images": Dialect(beside("Site|Images|Resolution", NAMES, NUMBERS, (512, 256, 512, 256))),
    "training samples before test samples": Dialect(
        beside("site|n_train|n_test", NAMES, NUMBERS, (9, 9, 9, 9)), notes=("ignored n_test",)
    ),
    "numbers with percentages": Dialect(
        beside("Hospital|n (%)", NAMES, [f"{n} ({n / TOTAL:.1%})" for n in NUMBERS])
    ),
    "numbers with a year": Dialect(table("Hospital", "Samples (2024)")),
    "importances of any sum": Dialect(
        beside("Site|Weight", "ABC", (2, 3, 7)), {"A": 2, "B": 3, "C": 7}
    ),
    "ids that Excel shall not change": Dialect(
        'hospital,patients\n="001",120\n="002",90\n', {"001": 120, "002": 90}
    ),
    "a table of Markdown": Dialect(
        "| Hospital | Patients |\n|:---|---:|\n"
        + "".join(f"| {k} | {n} |\n" for k, n in SIZES.items())
    ),
    "an answer of psql": Dialect(
        " hospital | patients \n----------+----------\n A        |      120\n B        |       90\n"
        "(2 rows)\n",
        {"A": 120, "B": 90},
        notes=("1 footnote: '(2 rows)'",),
    ),
    "an answer of mysql": Dialect(
        "+---+-----+\n| id | n |\n+---+-----+\n| A | 120 |\n| B | 90 |\n+---+-----+\n",
        {"A": 120, "B": 90},
    ),
    "columns of spaces": Dialect(
        "Hospital        Patients\n" + "".join(f"{k:<16}{n:>8}\n" for k, n in SIZES.items())
    ),
    "names, a space, sizes": Dialect("".join(f"{k} {n}\n" for k, n in SIZES.items())),
    "YAML": Dialect("".join(f"{k}: {n}\n" for k, n in SIZES.items())),
    "settings": Dialect("".join(f"{k} = {n}\n" for k, n in SIZES.items())),
    "a row for each patient": Dialect(
        lines([("patient_id", "hospital", "region", "age"), (1, "A", "x", 40), (2, "B", "y", 50)])
        + lines([(3, "A", "x", 45), (4, "A", "x", 61)]),
        {"A": 3, "B": 1},
        groups=("x", "y"),
        notes=("no column has sizes: counted 4 rows of 2 hospitals",),
    ),
    "a row for each client, and the hospitals of clients": Dialect(
        lines(
            [
                ("client", "hospital", "visits"),
                *((f"c{k}", "AB"[k % 2], 3 * k + 5) for k in range(30)),
            ]
        ),
        {f"c{k}": 3 * k + 5 for k in range(30)},
    ),
    "shares of clients, and their hospitals": Dialect(
        lines(
            [("id", "centre", "share"), *((f"c{k}", "AB"[k % 2], f"{k + 10}%") for k in range(5))]
        )
        + lines([("c5", "B", "40%")]),
        {"c0": 0.1, "c1": 0.11, "c2": 0.12, "c3": 0.13, "c4": 0.14, "c5": 0.4},
    ),
    "groups beside the clients": Dialect(
        '{"sites": {"A": 3, "B": 4}, "group": {"A": "x", "B": "y"}}',
        {"A": 3, "B": 4},
        groups=("x", "y"),
    ),
    "all samples, and those for training": Dialect(
        lines([("site", "n_samples", "n_train", "n_test"), ("A", 10, 8, 2), ("B", 20, 16, 4)]),
        {"A": 10, "B": 20},
    ),
    "samples per client": Dialect(
        lines([("site", "samples_per_client"), ("A", 5), ("B", 6)]), {"A": 5, "B": 6}
    ),
    "a number that stands for a missing one": Dialect(
        lines([("id", "n"), ("A", 120), ("B", 9999), ("C", 33), ("D", 9999)]),
        {"A": 120, "B": 9999, "C": 33, "D": 9999},
        notes=("line 3: 'B' and 1 more have 9999 samples, which often stands for a missing",),
    ),
    "a note of who printed it": Dialect(table("id", "n") + "Printed by: Meier,01.05.2024\n"),
    "JSON lists": Dialect(json.dumps([["name", "patients"], *map(list, SIZES.items())])),
    "JSON lists without names": Dialect(json.dumps([*map(list, SIZES.items())])),
    "JSON of pandas, by column": Dialect(
        json.dumps({"site": dict(enumerate(NAMES)), "n": dict(enumerate(NUMBERS))})
    ),
    "JSON of pandas, split": Dialect(
        json.dumps(
            {"columns": ["site", "n"], "index": [0, 1, 2, 3], "data": [*map(list, SIZES.items())]}
        )
    ),
    "JSON in objects": Dialect(
        json.dumps(
            {
                "meta": {"year": 2024},
                "data": {"sites": [{"name": k, "n": n} for k, n in SIZES.items()]},
            }
        )
    ),
    "LEAF, in the order of its users": Dialect(
        json.dumps(
            {"users": NAMES, "num_samples": NUMBERS, "user_data": {k: {} for k in sorted(NAMES)}}
        )
    ),
    "Excel with a hidden row": Dialect(
        lambda: hidden(workbook({"Data": [HEADER, *ROWS]})),
        groups=REGIONS,
        notes=("row 3 is hidden in Excel, but counted.",),
    ),
}


def hidden(content: bytes) -> bytes:
    """Hide the third row."""
    openpyxl = pytest.importorskip("openpyxl", reason="openpyxl writes Excel files")
    book = openpyxl.load_workbook(io.BytesIO(content))
    book.active.row_dimensions[3].hidden = True
    file = io.BytesIO()
    book.save(file)
    return file.getvalue()


def read_dialect(dialect: Dialect, folder: Path) -> ReadClients:
    content = dialect.content() if callable(dialect.content) else dialect.content
    path = folder / "hospitals"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return read(str(path), Reading(**dialect.settings))


@pytest.mark.parametrize("name", DIALECTS)
def test_every_file_is_read_at_once(name: str, tmp_path: Path) -> None:
    dialect = DIALECTS[name]

    found = read_dialect(dialect, tmp_path)

    population, clients = found.population, dialect.clients
    total = sum(clients.values())
    assert list(population.ids) == list(clients)
    assert population.importance.tolist() == pytest.approx(
        [n / total for n in clients.values()], abs=2**-40
    )
    assert total <= 1.01 or population.sizes.tolist() == list(clients.values())
    assert population.groups == dialect.groups
    notes = "\n".join([*found.notes, *found.row_notes])
    assert [part for part in dialect.notes if part not in notes] == []


SHEETS: dict[str, list[Iterable[Any]]] = {
    "Cover": COVER,
    "Year 2023": [("Hospital", "n"), ("A", 1), ("B", 2)],
    "x": [("n",), (7,)],
}


@pytest.mark.parametrize(
    ("sheet", "total"),
    [("Year 2023", 3), ("year-2023", 3), ("2", 3), (2, 3), ("x", 7), (3, 7)],
)
def test_a_sheet_is_named_or_numbered(sheet: str | int | None, total: int, tmp_path: Path) -> None:
    path = tmp_path / "hospitals.xlsx"
    path.write_bytes(workbook(SHEETS))

    assert read_clients(path, sheet=sheet).total == total


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (table("hospital", "mean_age"), "needs a column of sizes"),
        (table("client", "size_mb"), "needs a column of sizes"),
        (table("client", "Size (GB)"), "needs a column of sizes"),
        (
            beside("site|scans|subjects", NAMES, NUMBERS, NUMBERS),
            "needs one column of sizes; got scans, subjects.",
        ),
        (
            lines(
                [("hospital", "year", "beds"), *((k, y, 9) for k in NAMES for y in (2022, 2023))]
            ),
            "hospital must be distinct; .* Rename one, add up its rows",
        ),
        (
            json.dumps({"n_samples": [1, 2], "region": {"A": "x", "B": "y"}}),
            "n_samples is a list and region an object; their order may differ",
        ),
        (
            lambda: workbook({"North": [HEADER, *ROWS[:2]], "South": [HEADER, *ROWS[2:]]}),
            "needs one sheet of clients; North, South have sizes.",
        ),
    ],
)
def test_what_may_be_read_wrongly_is_refused(content: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=message):
        read_dialect(Dialect(content), tmp_path)


@pytest.mark.parametrize(
    ("name", "content", "settings", "message"),
    [
        (
            "a.xlsx",
            SHEETS,
            {"sheet": "z"},
            "a.xlsx: sheet must be one of Cover, Year 2023, x, or a",
        ),
        ("a.xlsx", SHEETS, {"sheet": 4}, "a.xlsx: sheet must be one of .* from 1; got 4."),
        (
            "a.xlsx",
            SHEETS,
            {"sheet": 0},
            "read_clients: sheet must be a sheet's name, or its number",
        ),
        ("a.xlsx", SHEETS, {"sheet": "Cover"}, "a.xlsx: needs a"),
        (
            "a.csv",
            "n\n5\n",
            {"sheet": "x"},
            "a.csv: sheet needs an Excel file; this is none. Leave",
        ),
        ("a.json", "[5]", {"header_row": 1}, "a.json: header_row needs an Excel or text file"),
        ("a.csv", "n\n5\n", {"header_row": 0}, "read_clients: header_row must be a line's number"),
        (
            "a.csv",
            "n\n5\n",
            {"header_row": 9},
            "a.csv: header_row must be one of its 2 lines; got 9",
        ),
    ],
)
def test_a_sheet_or_a_header_that_is_not_there_is_refused(
    name: str, content: Any, settings: dict[str, Any], message: str, tmp_path: Path
) -> None:
    path = tmp_path / name
    path.write_bytes(content.encode() if isinstance(content, str) else workbook(content))

    with pytest.raises(InputError, match=message):
        read_clients(path, **settings)
