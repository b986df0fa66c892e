"""The pictures of the gallery are drawn by the code beside them."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch", reason="the extra 'sim' is not installed")
pytest.importorskip("matplotlib", reason="the extra 'report' is not installed")
pytest.importorskip("PIL", reason="reads pictures")

from PIL import Image

from gallery import GALLERY, NAMES, draw, source


def test_every_file_is_on_the_page_and_every_picture_is_of_a_file() -> None:
    assert {path.stem for path in GALLERY.glob("*.py")} == set(NAMES)
    assert {path.stem for path in GALLERY.glob("*.png")} == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_picture_takes_ten_to_thirty_lines_and_little_room(name: str) -> None:
    assert 10 <= len(source(name).splitlines()) <= 30
    assert (GALLERY / f"{name}.png").stat().st_size < 120_000


@pytest.mark.slow
def test_the_code_draws_the_pictures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # go back there afterwards

    draw(tmp_path)

    assert {path.name for path in tmp_path.iterdir()} == {f"{name}.png" for name in NAMES}
    for name in NAMES:
        with (
            Image.open(tmp_path / f"{name}.png") as drawn,
            Image.open(GALLERY / f"{name}.png") as kept,
        ):
            assert drawn.size == kept.size
            assert len(drawn.convert("RGB").getcolors(1 << 24) or ()) > 10
