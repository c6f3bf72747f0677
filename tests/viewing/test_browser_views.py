"""What the page shows in a real Chromium in narrow windows, as a map, of slots, and of steps."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import ucpformat as ucp
from tests.builders import Tensor, save
from tests.viewing.chromium import Chromium
from tests.viewing.looking import MARKS, open_tensor, rows, shown

pytestmark = MARKS


@pytest.fixture
def narrow(chromium: Chromium) -> Iterator[Chromium]:
    """A window as of a telephone, which is also that of 1,600 pixels at four times their size."""
    chromium.call(
        "Emulation.setDeviceMetricsOverride", width=400, height=500, deviceScaleFactor=1, mobile=False
    )
    yield chromium
    chromium.call("Emulation.clearDeviceMetricsOverride")


def test_a_narrow_window_is_scrolled_one_way_alone_and_shows_what_was_opened(
    narrow: Chromium, tmp_path: Path
) -> None:
    tensors = {f"layers.{i}.attention.weight": np.arange(40.0).reshape(5, 8) for i in range(9)}
    for name in ("a.ucp", "b.ucp"):
        ucp.save(tmp_path / name, tensors, step=3)
    inside = "document.documentElement.scrollWidth <= document.documentElement.clientWidth"
    with shown(narrow, tmp_path / "a.ucp", tmp_path / "b.ucp", compared=1) as page:
        for view in ("map", "run", "state", "problems", "tensors"):
            page.value("scrollTo(0, 0)")
            page.click(f"[data-view={view}]")
            page.wait(f"document.querySelector('#{view} *')")
            assert page.value(inside), view
            top = page.value(f"document.getElementById('{view}').getBoundingClientRect().top")
            assert 0 < top < 400, view
        open_tensor(page, "layers.7.attention.weight")
        assert page.value(inside)
        assert page.value("document.querySelector('#tensor h2').getBoundingClientRect().top") < 250


def test_the_map_shows_modules_in_modules_by_what_changed(chromium: Chromium, tmp_path: Path) -> None:
    tensors = {
        f"layers.{i}.{part}.weight": np.full((64, 64), float(i)) for i in range(3) for part in ("mlp", "norm")
    }
    ucp.save(tmp_path / "a.ucp", tensors)
    ucp.save(tmp_path / "b.ucp", tensors | {"layers.1.mlp.weight": np.full((64, 64), 9.0)})
    told = "[...document.querySelectorAll('#map title')].map((one) => one.textContent)"
    fill = "document.querySelector('#map g > g').querySelector('rect').getAttribute('fill')"
    with shown(chromium, tmp_path / "b.ucp", tmp_path / "a.ucp", compared=1) as page:
        assert "1 of 6 atoms changed" in rows(page)[0]
        page.click("[data-view=map]")
        titles = page.value(told)
        assert "layers.1.: 1. 64.0 KiB, 1 of 2 atoms changed" in titles
        assert "layers.1.mlp.weight: mlp.weight 32.0 KiB, changed" in titles
        assert "layers.2.mlp.weight: mlp.weight 32.0 KiB" in titles
        shares = {
            title.split(":")[0]: page.value(
                "[...document.querySelectorAll('#map rect')].find((one) =>"
                f" one.textContent.startsWith('{title.split(':')[0]}:')).getAttribute('fill')"
            )
            for title in titles
        }
        assert "--changed) 100%" in shares["layers.1.mlp.weight"]
        assert "--changed) 50%" in shares["layers.1."]
        assert "--changed) 0%" in shares["layers.2."]
        # A click on what is inside opens that, and not what is around it.
        page.value(
            "[...document.querySelectorAll('#map g')].find((one) => one.querySelector('title')"
            ".textContent.startsWith('layers.1.mlp.weight')).dispatchEvent(new MouseEvent('click', {bubbles: true}))"
        )
        page.wait("document.querySelector('#tensor h2').textContent === 'layers.1.mlp.weight'")
        page.value(
            "[...document.querySelectorAll('#map g')].find((one) => one.querySelector('title')"
            ".textContent.startsWith('layers.2.:')).dispatchEvent(new MouseEvent('click', {bubbles: true}))"
        )
        page.wait("document.querySelectorAll('#map p button').length === 3")
        assert len(page.value(told)) == 2
    with shown(chromium, tmp_path / "a.ucp") as page:
        page.click("[data-view=map]")
        assert page.value(fill).startswith("hsl")


def test_slots_are_a_table_and_places_are_drawn_in_their_packs(chromium: Chromium, tmp_path: Path) -> None:
    layout = ucp.Layout(ucp.Mesh((ucp.MeshAxis("tp", 2),)), (ucp.Shard("tp", 0, "even"),))
    first = {
        ("w", "value"): Tensor(np.arange(64, dtype=np.float32).reshape(8, 8), "float32", layout=layout),
        ("w", "exp_avg"): Tensor(np.zeros((8, 8)), "float64"),
    }
    save(tmp_path / "a.ucp", first)
    save(tmp_path / "b.ucp", first | {("w", "exp_avg"): Tensor(np.ones((8, 8)), "float64")})
    with shown(chromium, tmp_path / "a.ucp", tmp_path / "b.ucp", compared=1) as page:
        open_tensor(page, "w")
        rows_of = "[...document.querySelectorAll('.slots tbody tr')]"
        cells = f"{rows_of}.map((row) => [...row.cells].map((cell) => cell.textContent))"
        assert page.value(cells) == [
            ["exp_avg", "float64", "8 × 8", "512 B (512)", "–", "changed"],
            ["value", "float32", "8 × 8", "256 B (256)", "shard tp dim 0", "same"],
        ]
        page.click("[data-panel=places] button")
        page.wait("document.querySelector('[data-panel=places] svg')")
        (pack,) = (tmp_path / "a.ucp" / "packs").iterdir()
        place = page.value(
            "[...document.querySelector('[data-panel=places] tbody tr').cells].map((cell) => cell.textContent)"
        )
        left, width = page.value(
            "['x', 'width'].map((name) =>"
            " Number(document.querySelectorAll('[data-panel=places] rect')[1].getAttribute(name)))"
        )
        size = pack.stat().st_size
        assert place[1] == f"packs/{pack.name}"
        assert left == pytest.approx(1 + 560 * int(place[2]) / size)
        assert width == pytest.approx(560 * int(place[3]) / size)


def test_steps_lie_on_a_line_and_two_are_compared_by_a_button(chromium: Chromium, tmp_path: Path) -> None:
    paths = [tmp_path / f"step-{step}.ucp" for step in (30, 20, 10)]
    for path, step in zip(paths, (30, 20, 10), strict=True):
        ucp.save(path, {"w": np.full(3, float(step)), "kept": np.zeros(4)}, step=step)
    with shown(chromium, *paths) as page:
        page.click("[data-view=run]")
        page.wait("document.querySelectorAll('#run .time circle').length === 3")
        places = page.value(
            "[...document.querySelectorAll('#run .time circle')].map((one) => Number(one.getAttribute('cx')))"
        )
        assert places == sorted(places)
        assert places[1] - places[0] == pytest.approx(places[2] - places[1])
        page.value("document.body.dataset.ready = ''")
        page.click("[aria-label='compare step 20 with step 10']")
        page.wait("document.body.dataset.ready")
        assert page.value("document.getElementById('title').textContent") == "step-20.ucp"
        assert rows(page) == ["keptfloat64 4", "wfloat64 3, changed"]
