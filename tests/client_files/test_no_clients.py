"""Lines of a file that are no clients: totals, titles, footnotes; and lines that are doubtful."""

import csv
import io
import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from command_line import Result, refused, run
from fedcohort import Population, read_clients
from fedcohort.client_files.clients import read
from fedcohort.client_files.table import Reading, look_alikes, total_in
from fedcohort.client_files.words import CODES_OF_MISSING

#: The clients of all files below: 6 hospitals, 2,330 patients; 3 in the North, 3 in the South.
HOSPITALS = {
    "St. Mary": ("North", 412),
    "All Saints": ("North", 96),
    "Total Care Clinic": ("North", 733),
    "Hôpital Sud": ("South", 158),
    "Klinik am See": ("South", 655),
    "Somme": ("South", 276),
}
SIZES = [size for _, size in HOSPITALS.values()]
NORTH, SOUTH, TOTAL = 412 + 96 + 733, 158 + 655 + 276, sum(SIZES)
ROWS = [(name, region, size) for name, (region, size) in HOSPITALS.items()]
HEADER = ("hospital", "region", "n")
Row = tuple[object, ...]


def text_of(rows: list[Row], delimiter: str = ",") -> str:
    file = io.StringIO(newline="")
    csv.writer(file, delimiter=delimiter, lineterminator="\n").writerows(rows)
    return file.getvalue()


def workbook(rows: list[Row]) -> bytes:
    openpyxl = pytest.importorskip("openpyxl", reason="openpyxl writes Excel files")
    book = openpyxl.Workbook()
    for row in rows:
        book.active.append([None if cell == "" else cell for cell in row])
    file = io.BytesIO()
    book.save(file)
    return file.getvalue()


def compared(capsys: pytest.CaptureFixture[str], data: str | bytes, *options: str) -> Result:
    return run(
        capsys, "compare", "-", "-m", 2, "-d", "multinomial,size", "--json", *options, stdin=data
    )


def content(result: Result) -> dict[str, Any]:
    assert result.code == 0, result.err
    found = json.loads(result.out)
    assert isinstance(found, dict)
    return found


def counted(result: Result) -> tuple[int, int]:
    found = content(result)
    return found["n_clients"], found["total"]


#: Files with these clients: the rows, and what is left out.
TOTALS: dict[str, tuple[list[Row], str]] = {
    "at the end": (
        [HEADER, *ROWS, ("Total", "", TOTAL)],
        "1 total: 'Total, 2330' (line 8).",
    ),
    "at the top": (
        [HEADER, ("All sites", "", TOTAL), *ROWS],
        "1 total: 'All sites, 2330' (line 2).",
    ),
    "in a sentence": (
        [HEADER, *ROWS, ("Sum of all sites:", "", TOTAL)],
        "1 total: 'Sum of all sites:, 2330' (line 8).",
    ),
    "in German": ([HEADER, *ROWS, ("GESAMT", "", TOTAL)], "1 total: 'GESAMT, 2330' (line 8)."),
    "in French": (
        [HEADER, *ROWS, ("Total général", "", TOTAL)],
        "1 total: 'Total général, 2330' (line 8).",
    ),
    "with the number of hospitals": (
        [HEADER, *ROWS, ("Total (n = 6)", "", TOTAL)],
        "1 total: 'Total (n = 6), 2330' (line 8).",
    ),
    "of a year": (
        [HEADER, *ROWS, ("Total 2024", "", TOTAL)],
        "1 total: 'Total 2024, 2330' (line 8).",
    ),
    "without a number": ([HEADER, *ROWS, ("Total", "", "")], "1 total: 'Total' (line 8)."),
    "a mean": (
        [HEADER, *ROWS, ("Average", "", 388.33), ("Total", "", TOTAL)],
        "1 statistic: 'Average, 388.33' (line 8).",
    ),
    "statistics": (
        [
            *(HEADER, *ROWS, ("Mean", "", 388.33), ("Std. dev.", "", 255.6), ("Min", "", 96)),
            *(("Max", "", 733), ("Median", "", 344), ("Count", "", 6)),
        ],
        "6 statistics: 'Mean, 388.33' (line 8), 'Std. dev., 255.6' (line 9), 'Min, 96' (line 10), "
        "'Max, 733' (line 11), 'Median, 344' (line 12), 'Count, 6' (line 13).",
    ),
    "beside a maximum": (
        [HEADER, *ROWS, ("Max", "", 733), ("Total", "", TOTAL)],
        "1 statistic: 'Max, 733' (line 8).",
    ),
    "two for the same clients": (
        [HEADER, *ROWS, ("TOT", "", TOTAL), ("Total hosp.", "", TOTAL)],
        "2 totals: 'TOT, 2330' (line 8), 'Total hosp., 2330' (line 9).",
    ),
    "below each region": (
        [
            *(HEADER, *ROWS[:3], ("Subtotal North", "", NORTH)),
            *(*ROWS[3:], ("Subtotal South", "", SOUTH), ("Grand Total", "", TOTAL)),
        ],
        "3 totals: 'Subtotal North, 1241' (line 5), 'Subtotal South, 1089' (line 9), "
        "'Grand Total, 2330' (line 10).",
    ),
    "above each region": (
        [
            *(HEADER, ("Subtotal", "North", NORTH), *ROWS[:3]),
            *(("Subtotal", "South", SOUTH), *ROWS[3:]),
        ],
        "2 totals: 'Subtotal, North, 1241' (line 2), 'Subtotal, South, 1089' (line 6).",
    ),
    "named by the region": (
        [HEADER, *ROWS, ("Total North", "", NORTH), ("South - total", "", SOUTH)],
        "2 totals: 'Total North, 1241' (line 8), 'South - total, 1089' (line 9).",
    ),
    "in brackets": (
        [HEADER, *ROWS, ("North (subtotal)", "", NORTH), ("(Total)", "", TOTAL)],
        "2 totals: 'North (subtotal), 1241' (line 8), '(Total), 2330' (line 9).",
    ),
    "in the column of regions": (
        [
            *(HEADER, *ROWS[:3], ("", "North Total", NORTH)),
            *(*ROWS[3:], ("", "South Total", SOUTH), ("", "Total", TOTAL)),
        ],
        "3 totals: 'North Total, 1241' (line 5), 'South Total, 1089' (line 9), 'Total, 2330' "
        "(line 10).",
    ),
    "without a name": (
        [HEADER, *ROWS[:3], ("", "North", NORTH), *ROWS[3:], ("", "", TOTAL)],
        "2 totals: 'North, 1241' (line 5), '2330' (line 9).",
    ),
    "a name that clients have too": (
        [HEADER, *ROWS, ("All", "", TOTAL)],
        "1 total: 'All, 2330' (line 8).",
    ),
    "of regions that no column names": (
        [
            *(("hospital", "n"), *((name, size) for name, _, size in ROWS[:3])),
            *(("Total North", NORTH), *((name, size) for name, _, size in ROWS[3:])),
            *(("Total South", SOUTH), ("Total", TOTAL)),
        ],
        "3 totals: 'Total North, 1241' (line 5), 'Total South, 1089' (line 9), 'Total, 2330' "
        "(line 10).",
    ),
    "behind all clients": (
        [
            *(("hospital", "n"), *((name, size) for name, _, size in sorted(ROWS))),
            *(("Sub-total North", NORTH), ("Sub-total South", SOUTH), ("Total", TOTAL)),
        ],
        "3 totals: 'Sub-total North, 1241' (line 8), 'Sub-total South, 1089' (line 9), "
        "'Total, 2330' (line 10).",
    ),
    "beside a running number": (
        [
            ("id", "hospital", "n"),
            *((k, name, size) for k, (name, _, size) in enumerate(ROWS)),
            (6, "Total", TOTAL),
        ],
        "1 total: '6, Total, 2330' (line 8).",
    ),
    "in a column of another name": (
        [("Krankenhaus", "Land", "n"), *ROWS, ("Zwischensumme North", "", NORTH), ("Summe", "", 9)],
        "2 totals: 'Zwischensumme North, 1241' (line 8), 'Summe, 9' (line 9).",
    ),
}


@pytest.mark.parametrize("kind", TOTALS)
@pytest.mark.parametrize("form", ["csv", "semicolons", "excel"])
def test_a_total_is_left_out_with_a_note(
    kind: str, form: str, capsys: pytest.CaptureFixture[str]
) -> None:
    rows, note = TOTALS[kind]
    data = workbook(rows) if form == "excel" else text_of(rows, ";" if form != "csv" else ",")

    result = compared(capsys, data)

    if form == "excel":
        note = note.replace("(line ", "(row ")
    assert counted(result) == (6, TOTAL)
    assert f"standard input: left out {note}\n" in result.err
    assert f"standard input: left out {note}" in content(result)["notes"]


@pytest.mark.parametrize(
    "data",
    [
        [{"hospital": name, "n": size} for name, _, size in [*ROWS, ("Total", "", TOTAL)]],
        {name: size for name, _, size in [*ROWS, ("Total", "", TOTAL)]},
        {"ids": [*HOSPITALS, "Total"], "sizes": [*SIZES, TOTAL]},
        {"sizes": {**dict(zip(HOSPITALS, SIZES, strict=True)), "Total": TOTAL}},
    ],
)
def test_totals_in_json_are_left_out(data: object, capsys: pytest.CaptureFixture[str]) -> None:
    result = compared(capsys, json.dumps(data))

    assert counted(result) == (6, TOTAL)
    assert "left out 1 total: 'Total, 2330' (client 6).\n" in result.err


def test_a_total_of_300_hospitals_does_not_change_the_comparison(
    capsys: pytest.CaptureFixture[str],
) -> None:
    rng = np.random.default_rng(0)
    rows: list[Row] = [
        (f"Hospital {k}", f"R{k % 7}", int(size))
        for k, size in enumerate(rng.lognormal(6, 0.7, 300))
    ]
    regions = [
        (f"Subtotal R{r}", "", sum(int(str(row[2])) for row in rows[r::7])) for r in range(7)
    ]
    total = ("Total", "", sum(int(str(row[2])) for row in rows))

    def numbers(result: Result) -> list[object]:
        found = content(result)
        times = ("build_seconds", "draw_seconds")
        designs = [{k: v for k, v in row.items() if k not in times} for row in found["designs"]]
        return [found["n_clients"], found["answer"], designs]

    plain = numbers(compared(capsys, text_of([HEADER, *rows])))
    with_total = numbers(compared(capsys, text_of([HEADER, *rows, total])))
    with_all = numbers(compared(capsys, text_of([HEADER, *rows, *regions, total])))

    assert plain == with_total == with_all


def test_plan_leaves_totals_out_as_well(capsys: pytest.CaptureFixture[str]) -> None:
    rows, _ = TOTALS["at the end"]

    result = run(capsys, "plan", "-", "-m", 2, stdin=text_of(rows))

    clients = result.out.partition("chance to be drawn")[2]
    assert "Total Care Clinic" in clients
    assert "Total " not in clients.replace("Total Care Clinic", "")
    assert "left out 1 total: 'Total, 2330' (line 8).\n" in result.err


def test_a_total_that_is_another_number_is_left_out_with_a_warning(
    capsys: pytest.CaptureFixture[str],
) -> None:
    result = compared(capsys, text_of([HEADER, *ROWS, ("Total", "", 2430)]))

    assert counted(result) == (6, TOTAL)
    assert (
        "standard input, line 8: 'Total' is 2,430, but the clients have 2,330. Check that none is "
        "missing.\n"
    ) in result.err


#: Files in which no line is left out: the last row, and the note on it.
DOUBTFUL: dict[str, tuple[list[Row], str]] = {
    "the name of a region's total with another number": (
        [HEADER, *ROWS, ("Total North", "", 99)],
        "line 8: 'Total North' may be a total, but 99 is not the sum of its clients. It counts as "
        "a client; drop it if it is a total.",
    ),
    "a subtotal of nothing": (
        [HEADER, *ROWS, ("Subtotal East", "", 99)],
        "line 8: 'Subtotal East' may be a total, but 99 is not the sum",
    ),
    "the sum of all others": (
        [HEADER, *ROWS, ("Big House", "North", TOTAL)],
        "line 8: 'Big House' has as many samples as all others together (2,330). It counts as a "
        "client; drop it if it is a total.",
    ),
    "the sum of the others in its group": (
        [HEADER, *ROWS, ("Big House", "North", NORTH)],
        "line 8: 'Big House' has as many samples as all others of 'North' together (1,241).",
    ),
    "the sum of all others, and a name that begins like a total": (
        [HEADER, *ROWS, ("Total Health", "North", TOTAL)],
        "line 8: 'Total Health' has as many samples as all others together (2,330).",
    ),
    "the sum of all others, twice": (
        [HEADER, *ROWS, ("Big House", "North", TOTAL), ("Total XY", "South", TOTAL)],
        "line 9: 'Total XY' has as many samples as all others but one together (2,330).",
    ),
    "three numbers": ([(100,), (200,), (300,)], "line 3: this client has as many samples as all"),
    "a name in capitals": (
        [HEADER, *ROWS, ("ST MARY", "North", 3)],
        "line 8: 'ST MARY' and 'St. Mary' on line 2 differ only in case, accents, spaces or "
        "punctuation. If they are one client, add up their sizes.",
    ),
    "a name with two spaces": (
        [HEADER, *ROWS, ("St.  Mary", "South", 3)],
        "line 8: 'St.  Mary' and 'St. Mary' on line 2 differ only in case",
    ),
    "a name without its accent": (
        [HEADER, *ROWS, ("Hopital  SUD", "South", 3)],
        "line 8: 'Hopital  SUD' and 'Hôpital Sud' on line 5 differ only in case",
    ),
}


@pytest.mark.parametrize("kind", DOUBTFUL)
def test_a_doubtful_line_stays_and_is_noted(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    rows, note = DOUBTFUL[kind]

    result = compared(capsys, text_of(rows))

    sizes = [int(str(row[-1])) for row in rows if str(row[-1]).isdecimal()]
    assert counted(result) == (len(sizes), sum(sizes))
    assert f"standard input, {note}" in result.err
    assert any(note in each for each in content(result)["notes"])


def test_notes_of_one_kind_are_counted_after_three(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [(f"{name} {k}", k) for k in range(1, 6) for name in ("Site", "SITE")]

    result = compared(capsys, text_of([("id", "size"), *rows]))

    assert result.err.count("differ only in case") == 3
    assert "standard input: 2 more have names that are nearly the same.\n" in result.err


SURE = (
    "Total|TOTALS|Sum|Sum of all sites|Subtotal|Sub-total|Grand total|Grand Totals|Sous-totaux|"
    "Overall|All sites|All hospitals|Total patients|Total (all sites)|* Total *|Gesamt|Insgesamt|"
    "Summe|Zwischensumme|Gesamtergebnis|Sous-total|Somme des hôpitaux|Totale|Totaal|Σ|合計|"
    "tot|Tot.|総計|Total hosp.|Total n|N total|Total cohort|Total dataset|Total study|Total train"
)
POSSIBLE = (
    "All Saints|Allgemeines Krankenhaus|Total Care Clinic|Klinik Total Care|Summit|Sumter|Somme|"
    "All|Sum-Tec|MEDIAN|MEDIAN Kliniken|Overall Clinic|Average Joe|Totality|Hospital 7|Σ-Klinik|"
    "St. Mary (total)|Ensemble|Sites|7|"
)


@pytest.mark.parametrize("name", SURE.split("|"))
def test_names_of_totals(name: str) -> None:
    total = total_in(name)

    assert total is not None
    assert total.is_sure


@pytest.mark.parametrize("name", POSSIBLE.split("|"))
def test_names_that_clients_may_have(name: str) -> None:
    total = total_in(name)

    assert total is None or not total.is_sure


def test_a_department_called_somme_is_a_client_unless_it_is_the_sum(
    capsys: pytest.CaptureFixture[str],
) -> None:
    departments: list[Row] = [("site", "n"), ("Aisne", 100), ("Oise", 60)]

    river = compared(capsys, text_of([*departments, ("Somme", 70)]))
    total = compared(capsys, text_of([*departments, ("Somme", 160)]))

    assert counted(river) == (3, 230)
    assert "Somme" not in river.err
    assert counted(total) == (2, 160)
    assert "left out 1 total: 'Somme, 160' (line 4)." in total.err


@pytest.mark.parametrize("name", ["Somme", "Suma", "All"])
def test_a_total_of_another_number_is_noted_if_it_is_most_of_all_samples(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    result = compared(capsys, text_of([("site", "n"), ("Aisne", 100), ("Oise", 60), (name, 170)]))

    assert counted(result) == (3, 330)
    assert f"line 4: '{name}' may be a total, but 170 is not the sum of its clients." in result.err


@pytest.mark.parametrize("place", ["above", "below"])
@pytest.mark.parametrize("with_total", [True, False])
def test_subtotals_with_the_names_of_regions_are_noted(
    place: str, with_total: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    rows: list[Row] = []
    for region in range(4):
        sizes = [100 + 17 * region + 31 * k for k in range(10)]
        rows += [(f"Hospital {region}-{k}", size) for k, size in enumerate(sizes)]
        rows.append((f"Region {region}", sum(sizes)))
    total = sum(int(str(size)) for name, size in rows if str(name).startswith("Hospital"))
    if place == "below":
        rows.reverse()

    last: list[Row] = [("Total", total)] if with_total else []
    result = compared(capsys, text_of([("hospital", "n"), *rows, *last]))

    first = "line 12: 'Region 0'" if place == "above" else "line 35: 'Region 0'"
    assert counted(result) == (44, 2 * total)
    assert (
        f"{first} and 3 more each have as many samples as the clients directly {place} together. "
        f"They count as clients; drop them if they are subtotals.\n"
    ) in result.err
    check = "Check that none is a subtotal or appears twice.\n"
    note = f"'Total' is {total:,}, but the clients have {2 * total:,}. {check}"
    assert (note in result.err) == with_total


def test_many_distinct_sizes_are_counted_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    class Counted(Counter[int]):
        def total(self) -> int:
            calls.append(len(self))
            return super().total()

    monkeypatch.setattr("fedcohort.client_files.clients.Counter", Counted)
    path = tmp_path / "sizes.csv"
    path.write_text("\n".join(map(str, range(1, 2001))))

    read_clients(path)

    assert sum(calls) <= 2 * 2000


@pytest.mark.parametrize(("size", "left_out"), [(40, True), (35, False), (50, False), (30, False)])
def test_a_row_called_median_is_left_out_if_it_is_that_of_the_others(
    size: int, left_out: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    rows: list[Row] = [("site", "n"), ("A", 10), ("B", 30), ("C", 50), ("D", 90)]

    result = compared(capsys, text_of([*rows, ("Median", size)]))

    assert counted(result)[0] == (4 if left_out else 5)


@pytest.mark.parametrize("last", [("Max", 160), ("Min", 5)])
@pytest.mark.parametrize("total", [True, False])
def test_a_client_may_be_called_max(
    last: Row, total: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    rows: list[Row] = [("id", "n"), ("Anna", 100), ("Lena", 50), last]
    whole = 150 + int(str(last[1]))

    result = compared(capsys, text_of([*rows, *([("Total", whole)] if total else [])]))

    assert counted(result) == (3, whole)
    assert "statistic" not in result.err


def test_a_word_for_a_total_may_be_a_property_of_clients(
    capsys: pytest.CaptureFixture[str],
) -> None:
    rows: list[Row] = [
        ("n", "coverage"),
        (100, "total"),
        (60, "total"),
        (70, "partial"),
        (9, "none"),
    ]

    result = compared(capsys, text_of(rows))

    assert counted(result) == (4, 239)
    assert result.err == "standard input: read n as size; ignored coverage.\n"


def test_look_alikes_keep_numbers_apart() -> None:
    names = ["Site 1-1", "Site 11", "Site 1.1", "site 1 1", "+", "-", "Site 2"]

    assert list(look_alikes(names)) == [(0, 2), (0, 3)]


#: What else stands in files, and the note on it. Each file has the clients of ROWS.
CLIENTS = text_of([HEADER, *ROWS])
OTHER_LINES: dict[str, tuple[str, str]] = {
    "a title": (
        f"Samples per hospital\n{CLIENTS}",
        "1 title: 'Samples per hospital' (line 1).",
    ),
    "titles and a blank line": (
        f"Samples per hospital, 2024\nProvisional\n\n{CLIENTS}",
        "2 titles: 'Samples per hospital, 2024' (line 1), 'Provisional' (line 2).",
    ),
    "a title from Excel": (
        f"Samples per hospital,,\n,,\n{CLIENTS}",
        "1 title: 'Samples per hospital' (line 1).",
    ),
    "a title like a header": (f"Samples\n{CLIENTS}", "1 title: 'Samples' (line 1)."),
    "a title with names and commas": (
        f"Samples,by hospital,\n{CLIENTS}",
        "1 title: 'Samples, by hospital' (line 1).",
    ),
    "a comment": (f"# exported by us\n{CLIENTS}", "1 title: '# exported by us' (line 1)."),
    "years above the header": (f",,2024\n{CLIENTS}", "1 title: '2024' (line 1)."),
    "units below the header": (
        CLIENTS.replace("n\n", "n\n,,(patients)\n", 1),
        "1 second header line: '(patients)' (line 2).",
    ),
    "a footnote": (f"{CLIENTS}\n* estimated\n", "1 footnote: '* estimated' (line 9)."),
    "a footnote from Excel": (f"{CLIENTS}* estimated,,\n", "1 footnote: '* estimated' (line 8)."),
    "a footnote with commas": (
        f"{CLIENTS}* estimated, see the report, p. 3\n",
        "1 footnote: '* estimated, see the report, p. 3' (line 8).",
    ),
    "sources": (
        f"{CLIENTS}Source: Ministry of Health\nQuelle: Ministerium, Bonn, 2024\n",
        "2 footnotes: 'Source: Ministry of Health' (line 8), 'Quelle: Ministerium, Bonn, 2024' "
        "(line 9).",
    ),
    "a source that looks like a client": (
        text_of([("hospital", "n"), *((name, size) for name, _, size in ROWS)])
        + "Source: Ministry, 2024\n",
        "1 footnote: 'Source: Ministry, 2024' (line 8).",
    ),
    "a total with too few values": (
        f"{CLIENTS}Total,{TOTAL}\n",
        "1 total: 'Total, 2330' (line 8).",
    ),
}


@pytest.mark.parametrize("kind", OTHER_LINES)
def test_titles_and_footnotes_are_left_out_with_a_note(
    kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    data, note = OTHER_LINES[kind]

    result = compared(capsys, data)

    assert counted(result) == (6, TOTAL)
    assert f"standard input: left out {note}\n" in result.err
    assert f"standard input: left out {note}" in content(result)["notes"]


def test_titles_and_footnotes_of_a_sheet_are_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    rows: list[Row] = [("Samples", "", 2024), HEADER, *ROWS, (), ("Source: Ministry",)]

    result = compared(capsys, workbook(rows))

    assert counted(result) == (6, TOTAL)
    assert "left out 1 title: 'Samples, 2024' (row 1).\n" in result.err
    assert "left out 1 footnote: 'Source: Ministry' (row 10).\n" in result.err


@pytest.mark.parametrize("delimiter", [";", "\t", "|"])
def test_a_title_does_not_hide_the_delimiter(
    delimiter: str, capsys: pytest.CaptureFixture[str]
) -> None:
    data = f"Hospitals, their regions, and samples\n{text_of([HEADER, *ROWS], delimiter)}"

    result = compared(capsys, data)

    assert counted(result) == (6, TOTAL)


@pytest.mark.parametrize(
    ("data", "parts"),
    [
        (
            "Hospital,Samples,Samples\n,train,test\nA,5,3\n",
            ("line 2: looks like a second line of the header (train, test). Write the header in",),
        ),
        (
            "Site,Size,,Region\nname,train,n,code\nA,5,3,N\n",
            ("line 2: looks like a second line of the header (name, train, n, code).",),
        ),
        (
            f"{CLIENTS}Data as of March\n",
            (
                "line 8: needs 3 values (hospital, region, n); got 1 ('Data as of March'). Add "
                "what is missing, or drop the row if it is not a client.",
            ),
        ),
        (
            f"{CLIENTS}Data as of March,,\n",
            ("line 8: n must be a whole number; it is empty. Give 0 if", "or drop the row."),
        ),
        (
            "hospital,n\n*A,5\n*B,3\n*C\n",  # the mark belongs to the names
            ("line 4: needs 2 values (hospital, n); got 1 ('*C').",),
        ),
        ("hospital,n\n*A,5\n*B,3\n*C,\n", ("line 4: n must be a whole number; it is empty.",)),
        (
            "a,5\nb,3\nid,size\nc,4\n",
            ("line 1: stands above the header on line 3, but has a size (a, 5). Put the header",),
        ),
        (
            "Hospital,2023,2024\n,n,n\nA,5,3\n",
            (", lines 1 and 2: needs one column of sizes; got n, n. Rename or drop one.",),
        ),
        (
            "Hospital,Patients,Patients\nName,Train,Test\nA,5,3\n",
            (", lines 1 and 2: needs one column of sizes; got Patients, Patients. Rename or",),
        ),
        ("Table 1\nid,n,n\nA,5,3\n", (", line 2: needs one column of sizes; got n, n.",)),
        ("id,size\nTotal,5\n", ("needs at least one client; got only totals.",)),
        (
            "id,size\na,0\nb,9\n,9\nc,4\n",  # as large as one other: no sum
            ("line 4: id must be a name or an integer; got ''. Correct it, drop the row if it is",),
        ),
    ],
)
def test_other_lines_are_refused_in_a_sentence_that_names_them(
    data: str, parts: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert refused(compared(capsys, data), "standard input", *parts)


def test_a_named_column_is_found_below_a_title(capsys: pytest.CaptureFixture[str]) -> None:
    data = "Table 1\nHospital,Beds\nA,5\nB,3\n"

    assert counted(compared(capsys, data, "--size-column", "beds")) == (2, 8)


def number_of_sums(sizes: list[int]) -> int:
    """Count the sizes that equal the sum of two or more before them, since the last such one."""
    number, block = 0, list[int]()
    for size in sizes:
        is_sum = len(block) > 1 and sum(block) == size
        number, block = number + is_sum, [] if is_sum else [*block, size]
    return number


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    sizes=st.lists(st.integers(1, 10**6), min_size=1, max_size=30),
    words=st.lists(
        st.sampled_from(["St. Mary", "Nord", "Klinik Süd", "All Saints", "Total Care"]),
        min_size=30,
        max_size=30,
    ),
    delimiter=st.sampled_from(",;\t|"),
    title=st.sampled_from(["id", "hospital", "Klinik"]),
)
def test_a_file_without_such_lines_is_read_as_it_is(
    sizes: list[int], words: list[str], delimiter: str, title: str, tmp_path: Path
) -> None:
    assume(not any(sum(sizes) in (2 * size, 3 * size) for size in sizes))
    assume(max(map(number_of_sums, (sizes, sizes[::-1]))) < 2)
    assume(max(sizes, default=0) not in CODES_OF_MISSING)
    names = [f"{word} {k}" for k, word in zip(range(len(sizes)), words, strict=False)]
    rows: list[Row] = [(title, "n"), *zip(names, sizes, strict=True)]
    path = tmp_path / "hospitals.csv"
    path.write_text(text_of(rows, delimiter), encoding="utf-8")

    found = read(path, Reading())

    assert found.row_notes == ()
    assert found.population.sizes.tolist() == sizes
    assert list(found.population.ids) == names


def test_python_logs_what_the_command_line_prints(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "hospitals.csv"
    path.write_text(text_of(TOTALS["at the end"][0]), encoding="utf-8")

    population = read_clients(path)

    assert isinstance(population, Population)
    assert dict(zip(population.ids, population.sizes.tolist(), strict=True)) == {
        name: size for name, _, size in ROWS
    }
    (warning,) = (record for record in caplog.records if record.levelname == "WARNING")
    assert warning.message == f"{path}: left out 1 total: 'Total, 2330' (line 8)."


@pytest.mark.parametrize(
    ("settings_given", "message"),
    [
        ({"size_column": "beds"}, "size_column must be one of hospital, region, n; got 'beds'."),
        ({"size_column": 3}, "read_clients: size_column must be the name of a column; got 3."),
        ({"thousands": "_"}, r"read_clients: thousands must be .* Write read_clients\(..., tho"),
        ({"id_column": "region"}, r"choose another column with read_clients\(..., id_column=...\)"),
    ],
)
def test_errors_in_python_name_arguments(
    settings_given: dict[str, Any], message: str, tmp_path: Path
) -> None:
    path = tmp_path / "hospitals.csv"
    path.write_text(CLIENTS, encoding="utf-8")

    with pytest.raises(ValueError, match=message):
        read_clients(path, **settings_given)


def test_a_parquet_file_is_read_as_its_frame(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow", reason="writes Parquet")
    parquet = pytest.importorskip("pyarrow.parquet", reason="writes Parquet")
    frame = pa.table({"hospital": ["b", "a"], "patients": [3, 5]})
    parquet.write_table(frame, tmp_path / "sizes.parquet")

    population = read_clients(tmp_path / "sizes.parquet")

    assert (list(population.ids), population.sizes.tolist()) == (["b", "a"], [3, 5])


def test_only_files_and_frames_are_read() -> None:
    with pytest.raises(ValueError, match="needs the path of a file or a data frame; got 3"):
        read_clients(3)  # type: ignore[arg-type]
