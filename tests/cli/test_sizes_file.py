"""Lists of sizes, good and bad, from files and standard input."""

from pathlib import Path

import pytest

from command_line import refused, run
from fedcohort.cli.client_files import read_clients
from fedcohort.selector.roster import in_order_of_ids


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

    population, places = in_order_of_ids(read_clients(str(path)))

    assert list(population.ids) == ["9", "10", "a", "b"]
    assert population.sizes.tolist() == [4, 2, 3, 1]
    assert places.tolist() == [3, 1, 2, 0]


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("", ("standard input: needs at least one size; the file is empty",)),
        (" \n", ("the file is empty",)),
        (",\n", ("the file is empty",)),
        ('""', ("the file is empty",)),
        ("1_000", ("unknown column '1_000'",)),
        ("5\n1_000", ("size must be a whole number; got '1_000'",)),
        ("9" * 5000, ("sizes must be finite; client 0 has inf",)),
        ("[" + "9" * 5000 + "]", ("is not valid JSON",)),
        ("1" + "0" * 400, ("must sum to less than 2^63; got 1000",)),
        ("id,size\na,5,9", ("line 2: needs 2 values (id, size); got 3",)),
        ("group,size\n,5", ("line 2: group is empty",)),
        ('{"sizes": [3], "ids": ["\\ud800"]}', ("ids must be integers or names; client 0 has",)),
        ("5\n-3", ("sizes must not be negative; client 1 has -3",)),
        ("5\n1.5", ("sizes must be whole numbers; client 1 has 1.5", "Round it")),
        ("nan", ("sizes must be finite; client 0 has nan",)),
        ("5\ninf", ("sizes must be finite; client 1 has inf",)),
        ("0\n0", ("sizes must not all be 0",)),
        ("5\nfive", ("standard input, line 2: size must be a whole number; got 'five'",)),
        ("99999999999999999999", ("must sum to less than 2^63",)),
        ("size\n", ("got nothing",)),
        ("siz\n5", ("unknown column 'siz'", "Did you mean 'size'?")),
        ("id\na", ("needs a column size; got id",)),
        ("size,size\n5,5", ("a column appears twice in size, size",)),
        ("5,3,2", ("unknown column '5'", "Give one size per line")),
        ("id,size\na", ("line 2: needs 2 values (id, size); got 1",)),
        ("id,size\na,5\na,3", ("ids must be distinct; 'a' appears more than once",)),
        ('id,size\n"a,5', ("is not valid CSV",)),
        ("[5, 3", ("is not valid JSON",)),
        ("[" * 100_000, ("is not valid JSON",)),
        ("[]", ("got nothing",)),
        ("[5, true]", ("sizes must be numbers; client 1 has true",)),
        ('[5, "3"]', ('sizes must be numbers; client 1 has "3"',)),
        ("[5, NaN]", ("sizes must be finite; client 1 has nan",)),
        ('{"sizes": 5}', ("sizes must be a list; got 5",)),
        ('{"size": [5]}', ("unknown column 'size'", "Did you mean 'sizes'?")),
        ('{"ids": [5]}', ("needs a column sizes; got ids",)),
        ('{"sizes": [5], "ids": ["a", "b"]}', ("ids must be one per client, 1; got 2",)),
        (
            '{"sizes": [5], "groups": ["a", "b"]}',
            ("groups must be one label per client, 1; got 2",),
        ),
        ('{"sizes": [5], "ids": [null]}', ("ids must be integers or names; client 0 has null",)),
        ('{"sizes": [5], "ids": [1.5]}', ("ids must be integers or names; client 0 has 1.5",)),
        ('{"sizes": [5], "groups": [0.5]}', ("groups must be integers or names",)),
        (b"\xff\xfe5", ("must be UTF-8 text",)),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(
    text: str | bytes, parts: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    for command in ("plan", "compare"):
        result = run(capsys, command, "-", "--cohort-size", 1, stdin=text)

        assert refused(result, "standard input", *parts)


def test_a_file_that_cannot_be_read_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = run(capsys, "plan", tmp_path / "none.csv", "-m", 1)
    folder = run(capsys, "plan", tmp_path, "-m", 1)

    assert refused(missing, "none.csv: cannot be read (no such file or directory)")
    assert refused(folder, "cannot be read (is a directory)")
