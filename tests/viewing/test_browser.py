"""The page in a real Chromium: values, layouts, damage, hostile names, the policy, large models."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import ucpformat as ucp
from tests.builders import BLOSC, GZIP, ZSTD, Tensor, save
from tests.viewing.chromium import Chromium
from tests.viewing.looking import HOSTILE, MARKS, open_tensor, rows, shown, window
from tests.viewing.opening import save_many

pytestmark = MARKS

TP2 = ucp.Layout(ucp.Mesh((ucp.MeshAxis("tp", 2),)), (ucp.Shard("tp", 0, "even"),))


@pytest.mark.parametrize(
    ("storage", "compressor"),
    [("plain", GZIP), ("packed", None), ("packed", ZSTD), ("plain", BLOSC)],
    ids=["gzip", "raw", "zstd", "blosc"],
)
def test_values_are_those_of_python(
    storage: str, compressor: ucp.Compressor | None, chromium: Chromium, tmp_path: Path
) -> None:
    tensor = np.random.default_rng(1).standard_normal((300, 40)).astype(np.float32)
    atoms = {"layers.0.wq": tensor, "layers.1.wq": tensor + 1, "steps": np.array([2**62, -1])}
    ucp.save(tmp_path / "a.ucp", atoms, storage=storage, compressor=compressor)  # type: ignore[arg-type]
    with shown(chromium, tmp_path / "a.ucp") as page:
        found = np.array(open_tensor(page, "*.1.w?"), dtype=np.float32)
        assert np.array_equal(found, (tensor + 1)[:8, :6])
        page.value(
            "(() => { const input = document.querySelector('[data-panel=values] input');"
            " input.value = 290; input.dispatchEvent(new Event('change')); })()"
        )
        page.wait("document.querySelector('table.values tbody th').textContent === '290'")
        assert np.array_equal(np.array(window(page), dtype=np.float32), (tensor + 1)[290:298, :6])
        assert open_tensor(page, "steps") == [[str(2**62), "-1"]]


def test_statistics_heat_map_layout_and_places_are_drawn(chromium: Chromium, tmp_path: Path) -> None:
    tensor = np.ones((4, 6), np.float32)
    tensor[0, 0] = np.nan
    tensor[1, 1] = -3
    ucp.save(tmp_path / "a.ucp", {"w": tensor})
    with shown(chromium, tmp_path / "a.ucp") as page:
        open_tensor(page, "w")
        for panel in ("heat map", "statistics", "places"):
            page.click(f"[data-panel='{panel}'] button")
        page.wait("document.querySelector('[data-panel=places] tbody tr')")
        told = page.value("document.querySelector('[data-panel=statistics] dl').innerText").split("\n")
        facts = dict(zip(told[::2], told[1::2], strict=True))
        assert (facts["elements"], facts["NaN"], facts["least"], facts["largest"]) == ("24", "1", "-3", "1")
        assert page.value("document.querySelectorAll('[data-panel=statistics] rect').length") == 2
        assert page.value("document.querySelector('canvas').width") == 6


def test_looking_around_reads_no_block_twice(chromium: Chromium, tmp_path: Path) -> None:
    tensor = np.random.default_rng(1).standard_normal((600, 300)).astype(np.float32)
    ucp.save(tmp_path / "a.ucp", {"w": tensor})
    with shown(chromium, tmp_path / "a.ucp") as page:
        open_tensor(page, "w")
        page.click("[data-panel='heat map'] button")
        page.wait("document.querySelector('canvas')")
        stored = sum(path.stat().st_size for path in (tmp_path / "a.ucp").rglob("*") if path.is_file())
        assert int(page.value("document.getElementById('fetched').dataset.bytes")) <= stored


def test_who_holds_what_is_drawn_with_a_slider(chromium: Chromium, tmp_path: Path) -> None:
    tensor = Tensor(np.arange(32.0).reshape(8, 4), "float64", layout=TP2)
    save(tmp_path / "a.ucp", {("w", "value"): tensor})
    with shown(chromium, tmp_path / "a.ucp") as page:
        open_tensor(page, "w")
        page.wait("document.querySelector('[data-panel=layout] output')")
        assert (
            page.value("document.querySelector('[data-panel=layout] output').textContent")
            == "rank 0 (tp 0): 4 × 4, 1 box"
        )
        page.value(
            "(() => { const slider = document.querySelector('[data-panel=layout] input');"
            " slider.value = 1; slider.dispatchEvent(new Event('input')); })()"
        )
        assert "rank 1 (tp 1)" in page.value(
            "document.querySelector('[data-panel=layout] output').textContent"
        )


def test_a_flipped_byte_is_refused_with_the_name_of_the_tensor(chromium: Chromium, tmp_path: Path) -> None:
    ucp.save(tmp_path / "a.ucp", {"good": np.zeros(3) + 1, "layers.wq": np.arange(1000.0)})
    (pack,) = (tmp_path / "a.ucp" / "packs").iterdir()
    data = bytearray(pack.read_bytes())
    data[-5] ^= 1
    pack.write_bytes(data)
    with shown(chromium, tmp_path / "a.ucp") as page:
        assert open_tensor(page, "good") == [["1", "1", "1"]]
        assert open_tensor(page, "layers.wq") == []
        refusal = page.value("document.querySelector('[data-panel=values] .error').textContent")
        assert "UCP-E-CHECKSUM" in refusal
        assert "layers.wq" in refusal
        open_tensor(page, "good")
        page.click("[data-view=problems]")
        page.wait(
            "document.getElementById('problems').innerText.startsWith('No problems at level semantics')"
        )
        page.click("#problems button")
        page.wait("document.querySelector('#problems tbody tr')")
        told = page.value(
            "[...document.querySelector('#problems tbody tr').cells].map((cell) => cell.textContent)"
        )
        assert (told[0], told[3]) == ("UCP-E-CHECKSUM", "layers.wq")
        page.click("#problems tbody button")
        assert page.value("document.querySelector('#tensor h2').textContent") == "layers.wq"


def test_a_changed_document_is_refused(chromium: Chromium, tmp_path: Path) -> None:
    ucp.save(tmp_path / "a.ucp", {"w": np.arange(3.0)})
    root = tmp_path / "a.ucp" / "ucp.json"
    (index,) = [path for path in (tmp_path / "a.ucp" / "index").iterdir() if b'"atoms"' in path.read_bytes()]
    index.write_bytes(index.read_bytes().replace(b'"w"', b'"v"', 1))
    with shown(chromium, tmp_path / "a.ucp") as page:
        # The server refuses it too: it does not know what else the root document reaches.
        assert page.value("document.getElementById('refusal').textContent").startswith("UCP-E-")
    assert root.exists()


def test_names_are_text_alone(chromium: Chromium, tmp_path: Path) -> None:
    tensors = {
        (name, slot): Tensor(np.arange(2.0), "float64")
        for name in HOSTILE
        for slot in ("value", "constructor")
    }
    save(tmp_path / "a.ucp", tensors)
    with shown(chromium, tmp_path / "a.ucp") as page:
        page.click("#flat")
        found = rows(page)
        assert any(HOSTILE[0] in row for row in found)
        assert any("\\u{202e}gnp.exe" in row for row in found)
        assert not any("\u202e" in row for row in found)
        assert max(map(len, found)) < 300
        for index in range(len(HOSTILE)):
            page.value(f"document.getElementById('row-{index}').click()")
            window(page)
            page.click("#tensor button[aria-pressed=false]")
            assert window(page) == [["0", "1"]]
            assert page.value("document.querySelectorAll('#tensor .error').length") == 0
        for view in ("map", "state", "problems", "tensors"):
            page.click(f"[data-view={view}]")
        assert page.value("document.title") == "a.ucp"
        assert page.value("document.querySelectorAll('img, #list script').length") == 0


def test_everything_is_reached_by_keyboard(chromium: Chromium, tmp_path: Path) -> None:
    tensor = Tensor(np.arange(32.0).reshape(8, 4), "float64", layout=TP2)
    for name in ("a.ucp", "b.ucp"):
        save(tmp_path / name, {("w", "value"): tensor})

    def tabs(page: Chromium) -> list[str]:
        """Press Tab until the focus leaves the page, and return what had it, from the first element on."""
        found = ["side-a"]
        page.value("document.getElementById('side-a').focus()")
        while len(found) < 60:
            page.key("Tab")
            at = "((e) => e === document.body ? '' : e.id || e.dataset.view || e.ariaLabel || e.textContent)"
            focused = page.value(f"{at}(document.activeElement)")
            if focused == "":
                return found
            found.append(focused)
        raise AssertionError(found)

    with shown(chromium, tmp_path / "a.ucp", tmp_path / "b.ucp", compared=1) as page:
        views = ["tensors", "map", "plan", "run", "state", "problems"]
        first = ["side-a", "side-b", "directory", *views, "search", "flat", "by-size", "changed", "list"]
        assert tabs(page) == first
        open_tensor(page, "w")
        page.wait("document.querySelector('[data-panel=layout] output')")
        rest = tabs(page)[len(first) :]
        assert rest[:3] == ["value", "first index of dimension 0", "first index of dimension 1"]
        assert {"rank", "layout to plan to, as JSON", "plan"} <= set(rest)
        for view, wanted in (("map", "w 256 B"), ("plan", "size of tp in mesh 0")):
            page.value(f"document.querySelector('[data-view={view}]').focus()")
            page.key("Enter", "\r")
            page.wait(f"!document.getElementById('{view}').hidden")
            assert wanted in tabs(page)


def test_the_policy_refuses_what_is_not_of_the_page(chromium: Chromium, tmp_path: Path) -> None:
    ucp.save(tmp_path / "a.ucp", {"w": np.arange(3.0)})
    with shown(chromium, tmp_path / "a.ucp") as page:
        assert (
            page.value("(() => { try { return eval('1'); } catch (error) { return error.name; } })()")
            == "EvalError"
        )
        script = "const s = document.createElement('script'); s.textContent = 'taken = 1'; document.body.append(s);"
        page.value(f"(() => {{ {script} }})()")
        assert page.value("window.taken ?? null") is None
        assert page.value("fetch('http://127.0.0.2:9/').then(() => 'came', () => 'refused')") == "refused"
        assert any("Content Security Policy" in line for line in page.log)
        page.log.clear()


def test_a_window_of_a_large_tensor_reads_little(chromium: Chromium, tmp_path: Path) -> None:
    large = np.zeros((1 << 14, 1 << 14), np.float32)
    large[8192, 0] = 7
    ucp.save(tmp_path / "a.ucp", {"large": large, "w": np.arange(3.0)})
    with shown(chromium, tmp_path / "a.ucp") as page:
        documents = sum(
            path.stat().st_size for path in (tmp_path / "a.ucp").rglob("*") if path.parent.name != "packs"
        )
        open_tensor(page, "large")
        page.value(
            "(() => { const input = document.querySelector('[data-panel=values] input');"
            " input.value = 8192; input.dispatchEvent(new Event('change')); })()"
        )
        page.wait("document.querySelector('table.values td').textContent === '7'")
        fetched = int(page.value("document.getElementById('fetched').dataset.bytes"))
        assert fetched <= documents + (2 << 20)


def test_a_hundred_thousand_atoms_are_listed_and_scrolled(chromium: Chromium, tmp_path: Path) -> None:
    count = 100_000
    save_many(tmp_path / "a.ucp", count)
    parts = len(list((tmp_path / "a.ucp" / "index").glob("*-[0-9]*.json")))
    with shown(chromium, tmp_path / "a.ucp") as page:
        assert page.value("document.body.dataset.ready") == str(count), page.value("document.body.innerText")
        # What takes time: each part is asked for once, by one worker, no table is, and few rows are elements.
        asked = [url for url in page.requests if "/index/" in url]
        assert len(asked) == len(set(asked)) == parts
        assert page.value("document.querySelectorAll('*').length") < 600
        page.click("#flat")
        assert page.value("document.querySelectorAll('.row').length") < 200
        page.value("document.getElementById('list').focus()")
        page.key("End")
        page.wait("document.querySelector('.row.chosen').getAttribute('aria-posinset') === '100000'")
        page.type("#search", "layers.999.experts.99.*")
        page.wait("document.querySelectorAll('.row').length === 1")
