"""Lists of sizes, good and bad, from files and standard input."""

import io
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from command_line import refused, run
from fedcohort import read_clients
from fedcohort.errors import InputError, MissingExtraError


@pytest.mark.parametrize(
    ("text", "sizes", "ids", "groups"),
    [
        ("5\n3\n2\n", [5, 3, 2], [0, 1, 2], None),
        ("size\n5\n3.0\n\n2e0\n", [5, 3, 2], [0, 1, 2], None),
        ("id,size\na,5\nb,3\n", [5, 3], ["a", "b"], None),
        ("Size, ID ,group\n5,a,x\n3,b,y", [5, 3], ["a", "b"], ("x", "y")),
        ("id;size\na;5\n", [5], ["a"], None),
        ("id\tsize\r\na\t5\r\n", [5], ["a"], None),
        ('"id","size"\n"a, b",5\n', [5], ["a, b"], None),
        ('id,size\n"a\nb",5\nab,3\nc\u2028d,1\n', [5, 3, 1], ["a\nb", "ab", "c\u2028d"], None),
        ('"client\nid",size,"a;b;c"\na,5,\n', [5], ["a"], None),
        ("id|size\na,b;c|5\nd,e;f|3\n", [5, 3], ["a,b;c", "d,e;f"], None),
        ("1152921504606846977\n3.0", [2**60 + 1, 3], [0, 1], None),
        ("\ufeffid,size\na,5\n", [5], ["a"], None),
        ("[5, 3.0]", [5, 3], [0, 1], None),
        ('{"sizes": [5, 3], "ids": ["a", 7], "groups": [1, 2]}', [5, 3], ["a", 7], (1, 2)),
        (f"{2**60 + 1}\n0", [2**60 + 1, 0], [0, 1], None),
    ],
)
def test_csv_and_json_say_the_same(
    text: str,
    sizes: list[int],
    ids: list[object],
    groups: tuple[object, ...] | None,
    tmp_path: Path,
) -> None:
    path = tmp_path / "sizes.txt"
    path.write_text(text, encoding="utf-8", newline="")

    clients = read_clients(str(path))

    assert clients.sizes.tolist() == sizes
    assert list(clients.ids) == ids
    assert clients.groups == groups


def test_clients_stand_in_the_order_of_ids_numbers_first(tmp_path: Path) -> None:
    path = tmp_path / "sizes.csv"
    path.write_text("id,size\nb,1\n10,2\na,3\n9,4\n")

    population, places = read_clients(str(path)).in_order_of_ids()

    assert list(population.ids) == ["9", "10", "a", "b"]
    assert population.sizes.tolist() == [4, 2, 3, 1]
    assert places.tolist() == [3, 1, 2, 0]


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("", (": needs at least one size; the file is empty. Give one size per line, or",)),
        (" \n", ("the file is empty",)),
        (",\n", ("the file is empty",)),
        ('""', ("the file is empty",)),
        ("sep=;\n", ("the file is empty",)),
        (b"\xa0", ("the file is empty",)),
        # sizes
        ("5\n1_000", (", line 2: size must be a whole number; got '1_000'. Correct it, drop",)),
        ("9" * 5000, (", line 1: size must be a whole number; got '999", "Correct it")),
        ("1" + "0" * 400, ("must sum to less than 2^63; got 1000",)),
        ("99999999999999999999", ("must sum to less than 2^63",)),
        ("0\n0", ("sizes must not all be 0",)),
        ("5\n\n-3", (", line 3: size must not be negative; got '-3'. Give 0 if", "or drop")),
        (
            "5\n1.5",
            (", line 2: size must be a whole number; got '1.5'. Round it, drop the row if",),
        ),
        ("size\n5\n5,1", (", line 3: size must be a whole number; got '5,1'. Round it",)),
        ("size\n5,0\n5,146", (", line 2: size must be a whole number; got '5,0'. Round it",)),
        ("size\n51,46", ("got '51,46'",)),
        ("size\n5,146 200", ("got '5,146 200'",)),
        ("nan", (", line 1: size must be a whole number; got 'nan'. Give 0 if the client",)),
        ("5\ninf", (", line 2: size must be a whole number; got 'inf'. Give 0",)),
        ("id,size\na,N/A", (", line 2: size must be a whole number; got 'N/A'. Give 0",)),
        ("id,size\na,5\nb, ", (", line 3: size must be a whole number; it is empty. Give 0",)),
        (
            "id,size\na,\nb,\nc,n/a\nd,5\ne,-2",
            (
                ": size must be whole numbers, at least 0; 4 are not: line 2 is empty, line 3 is "
                "empty, line 4 has 'n/a', line 6 has '-2'. Give 0 if a client has no samples,",
            ),
        ),
        ("5\nfive", (", line 2: size must be a whole number; got 'five'. Correct it",)),
        (
            "id,count\na,12\nb,5.146\nc,1.000",
            (
                ", line 3: count must be a whole number; got '5.146' (and 1 more), which may be "
                "thousands or a fraction. Use --thousands . for thousands, or write the numbers "
                "without a point.",
            ),
        ),
        ("1.000", (", line 1: size must be a whole number; got '1.000'", "--thousands .")),
        ("site;share\na;40 %\nb;\nc;60 %", ("share must be shares; 1 is not: line 3 is empty.",)),
        (
            "site;share\na;40 %\nb;50 %",
            (
                "share must sum to 100 % or 1",
                "got 90. Add the",
            ),
        ),
        ("site,patients\na,<5\nb,10 patients", ("2 are not: line 2 has '<5', line 3 has '10 pa",)),
        # rows and columns
        ("id,size\n", (": needs at least one client; got none. Give one size per line",)),
        ("id,size\na", (", line 2: needs 2 values (id, size); got 1 ('a'). Add what",)),
        (
            "id,size\nb,1\na,5,146",
            (", line 3: needs 2 values (id, size); got 3 ('a, 5, 146'). Put quotes",),
        ),
        ('id,size\na,1\n"b\nc,5', (", line 3: is not valid CSV", "Check the quotes.")),
        ('"id,size', (", line 1: is not valid CSV",)),
        ("1_000", (": needs a column of sizes, called size, n_samples, patients or similar",)),
        ("id\na", ("similar; got id. Give one size per line, or a header such as id,size; or",)),
        (
            "a,year,visits,my beds\nx,1990,1,2",
            ("got a, year, visits, my beds. Name it: --size-column visits or 'my beds'.",),
        ),
        ("a,opened\nx,1.5.2024\ny,2.6.2024", ("got a, opened. Give one size per line",)),
        ("5,3,2", (": needs a first line that names the columns; got 5, 3, 2. Give one size",)),
        ("Site,2024\nLyon,3", (": needs a first line that names the columns; got Site, 2024.",)),
        ("size,size\n5,5", (": needs one column of sizes; got size, size. Rename or drop one.",)),
        (
            "id,n,Num Rows\na,5,5",
            ("one column of sizes; got Num Rows, n. Choose one: --size-column 'Num Rows'.",),
        ),
        (
            "id,ID,size\na,b,5",
            ("needs one column of ids; got id, ID. Choose one: --id-column id.",),
        ),
        # ids and groups
        (
            "id,size\na,5\nb,2\na,3",
            (", line 4: id must be distinct; 'a' is also on line 2. Rename one, add up",),
        ),
        ("site,size\n,5", (", line 2: site must be a name or an integer; got ''. Correct it",)),
        ("region,size\n,5\n,3", (": region must have a label; all are empty. Fill it in.",)),
        # JSON
        ("[5, 3", ("is not valid JSON",)),
        ("[" * 100_000, ("is not valid JSON",)),
        ("[" + "9" * 5000 + "]", ("is not valid JSON",)),
        ('{"a": 5, "a": 3}', ("is not valid JSON (the key 'a' appears twice in an object)",)),
        ("[]", ("needs at least one client; got none",)),
        ("{}", ("needs at least one client; got none",)),
        ("[5, true]", (", client 1: size must be a whole number; got True. Correct it",)),
        ("[5, null]", (", client 1: size must be a whole number; it is empty.",)),
        ("[5, [3]]", (", client 1: size must be a whole number; got [3].",)),
        ("[5, NaN]", (", client 1: size must be a whole number; got nan. Give 0",)),
        ("[5, 1e999]", (", client 1: size must be a whole number; got inf. Give 0",)),
        ("[5, 2.5]", (", client 1: size must be a whole number; got 2.5. Round it",)),
        ("[5, -2]", (", client 1: size must not be negative; got -2.",)),
        ('[{"n": 5}, {"id": "b"}]', (", client 1: n must be a whole number; it is empty.",)),
        ('[{"n": 5}, 3]', (", client 0: size must be a whole number; got {'n': 5}.",)),
        ('{"a": 5, "b": "x"}', (", client 1: size must be a whole number; got 'x'.",)),
        ('{"sizes": 5}', (": sizes must be a list, or an object of ids and sizes; got 5. Write",)),
        ('{"id": "a", "size": 5}', (": size must be a list, or an object of ids and sizes; got",)),
        ('{"ids": [5]}', ("needs a column of sizes", "got ids")),
        ('{"sizes": {"a": 5}, "groups": {"b": 1}}', ("must have the same ids; they differ in",)),
        ('{"sizes": [5], "ids": ["a", "b"]}', ("ids must be one per client, 1; got 2",)),
        (
            '{"sizes": [5], "groups": ["a", "b"]}',
            ("groups must be one label per client, 1; got 2",),
        ),
        ('{"sizes": [3], "ids": ["\\ud800"]}', ("client 0: ids must be a name or an integer",)),
        (
            '{"sizes": [5], "ids": [null]}',
            ("client 0: ids must be a name or an integer; got None",),
        ),
        ('{"sizes": [5], "ids": [1.5]}', ("client 0: ids must be a name or an integer; got 1.5",)),
        ('{"sizes": [5], "ids": [[1]]}', ("client 0: ids must be a name or an integer; got [1]",)),
        ('{"sizes": [5], "groups": [0.5]}', ("client 0: groups must be a name or an integer",)),
        # files that are not text
        (b"\xff\xfe5", (": must be text (UTF-8, UTF-16 with", "it starts with b'\\xff\\xfe5'.")),
        (b"\x89PNG\r\n\x1a\n\0\0\0", (": must be text", "Save it as CSV.")),
        ("id,size".encode("utf-16-le"), (": must be text (UTF-8, UTF-16 with a byte order mark",)),
        (b"5\n\x81\n", (": must be text",)),
        (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", (": needs an .xlsx file; it is an old Excel file",)),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(
    text: str | bytes, parts: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    for command in ("plan", "compare"):
        result = run(capsys, command, "-", "--cohort-size", 1, stdin=text)

        assert refused(result, "standard input", *parts)


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        (
            ("--size-column", "n_sample"),
            (
                "standard input: --size-column must be one of Site, N Samples, Region; got "
                "'n_sample'. Did you mean 'N Samples'?",
            ),
        ),
        (("--id-column", "xyz"), ("--id-column must be one of", "Choose one of these.")),
        (("--group-column", "regions"), ("got 'regions'. Did you mean 'Region'?",)),
        (
            ("--size-column", "region"),
            (": Region must be whole numbers, at least 0; 2 are not: line 2 has 'x', line 3 has",),
        ),
        (("--id-column", "region"), (", line 3: Region must be distinct; 'x' is also on line 2",)),
        (
            ("--thousands", "_"),
            ("--thousands must be a point, a comma, an apostrophe or a space; got '_'. Write",),
        ),
        (("--thousands", ""), ("--thousands must be a point",)),
        (
            ("--thousands", "."),
            ("line 3: N Samples must be a whole number with the thousands mark '.'; got '5,146'",),
        ),
    ],
)
def test_a_bad_option_is_one_sentence_and_exit_code_2(
    options: tuple[str, ...], parts: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    text = 'Site,N Samples,Region\na,5,x\nb,"5,146",x\n'

    for command in ("plan", "compare"):
        assert refused(run(capsys, command, "-", "-m", 1, *options, stdin=text), *parts)


def test_a_damaged_workbook_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("openpyxl", reason="openpyxl reads Excel files")
    archive = io.BytesIO()
    with ZipFile(archive, "w") as file:
        file.writestr("sizes.csv", "5")

    for data in (b"PK\x03\x04", archive.getvalue()):
        result = run(capsys, "plan", "-", "-m", 1, stdin=data)

        assert refused(result, "standard input: must be an .xlsx file or text; it is not, or not")


def test_an_empty_sheet_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    openpyxl = pytest.importorskip("openpyxl", reason="openpyxl writes Excel files")
    openpyxl.Workbook().save(tmp_path / "sizes.xlsx")

    result = run(capsys, "plan", tmp_path / "sizes.xlsx", "-m", 1)

    assert refused(result, "sizes.xlsx, sheet 'Sheet': needs at least one size; the file is empty")


def test_a_bad_cell_of_a_sheet_is_named_by_its_row(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    openpyxl = pytest.importorskip("openpyxl", reason="openpyxl writes Excel files")
    book = openpyxl.Workbook()
    for row in (["id", "size"], ["a", 5], [], ["b", 1.5]):
        book.active.append(row)
    book.save(tmp_path / "sizes.xlsx")

    result = run(capsys, "plan", tmp_path / "sizes.xlsx", "-m", 1)

    assert refused(result, "sizes.xlsx, row 4: size must be a whole number; got 1.5. Round it")


def test_without_openpyxl_the_install_command_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "openpyxl", None)

    result = run(capsys, "plan", "-", "-m", 1, stdin=b"PK\x03\x04")

    assert refused(result, "standard input: needs openpyxl", "Run: pip install openpyxl, or save")


CELLS = st.sampled_from(["id", "size", "n", "5", "5,146", "1.000", "-1", "", "é", "\0", "{", "["])
MARKS = st.sampled_from([",", ";", "\t", "|", "\n", "\r", '"', " ", ":", "}", "]"])


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    data=st.binary(max_size=30)
    | st.lists(CELLS | MARKS).map(lambda parts: "".join(parts).encode())
    | st.lists(CELLS | MARKS).map(lambda parts: "".join(parts).encode("utf-16"))
)
def test_any_file_is_read_or_refused(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "sizes"
    path.write_bytes(data)

    try:
        outcome = repr(read_clients(str(path)))
    except (InputError, MissingExtraError) as error:
        outcome = str(error)

    assert outcome.startswith(("Population(", str(path)))


def test_a_file_that_cannot_be_read_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = run(capsys, "plan", tmp_path / "none.csv", "-m", 1)
    folder = run(capsys, "plan", tmp_path, "-m", 1)

    assert refused(missing, "none.csv: cannot be read (no such file or directory)")
    assert refused(folder, "cannot be read (is a directory)")
