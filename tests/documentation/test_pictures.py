"""Pictures of the documentation are what is drawn today, and each of them is on a page."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.documentation.pictures import (
    IMAGES,
    PLOTS,
    ROOT,
    RUNS,
    SCREENSHOTS,
    digests_of_screenshots,
    draw_checkpoint,
    draw_run,
    made_from,
)

REMEDY = "run `make pictures`, look at the pictures, and commit them"


@pytest.mark.parametrize("name", RUNS)
def test_pictures_of_runs_are_those_of_the_kept_numbers(name: str, tmp_path: Path) -> None:
    assert draw_run(name, tmp_path).read_bytes() == (PLOTS / f"{name}.svg").read_bytes(), REMEDY


def test_drawings_are_as_they_are_drawn_today(tmp_path: Path) -> None:
    drawn = {path.name: path.read_bytes() for path in draw_checkpoint(tmp_path)}
    assert drawn == {name: (IMAGES / name).read_bytes() for name in drawn}, REMEDY


def test_screenshots_are_of_the_page_as_it_is() -> None:
    kept, found = json.loads(SCREENSHOTS.read_text(encoding="utf-8")), made_from()
    others = sorted(
        name for name in {*kept["made from"], *found} if kept["made from"].get(name) != found.get(name)
    )
    assert not others, (
        f"{', '.join(others)}: not what the screenshots were made from; {REMEDY}; it needs Chromium"
    )
    assert kept["pictures"] == digests_of_screenshots(), REMEDY


def test_every_picture_is_on_a_page() -> None:
    pages = [ROOT / "README.md", ROOT / "benchmarks" / "README.md", *(ROOT / "docs").rglob("*.md")]
    text = "\n".join(page.read_text(encoding="utf-8") for page in pages)
    for folder in (IMAGES, PLOTS):
        for picture in (*folder.glob("*.svg"), *folder.glob("*.png")):
            assert f"{folder.name}/{picture.name})" in text, picture.name
