"""The page in a real Chromium: values, layouts, damage, hostile names, dropped directories, the policy."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import ucpformat as ucp
from tests.builders import BLOSC, GZIP, ZSTD, Tensor, save
from tests.documentation.markdown import run_by
from tests.viewing.chromium import CHROMIUM, Chromium
from ucpformat.cli import main
from ucpformat.manager.run_directory import METRICS
from ucpformat.viewing import bundle as bundling
from ucpformat.viewing.bundle import source
from ucpformat.viewing.page import served_parts
from ucpformat.viewing.server import PageServer

pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium here; Debian's package is `chromium`"),
    pytest.mark.xdist_group("chromium"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

TP2 = ucp.Layout(ucp.Mesh((ucp.MeshAxis("tp", 2),)), (ucp.Shard("tp", 0, "even"),))
HOSTILE = (
    "<script>document.title = 'taken'</script>",
    "<img src=x onerror=\"document.title='taken'\">",
    "\u202egnp.exe",
    "n" * 1024,
    "__proto__",
    "toString",
    "." * 1024,
)


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    with Chromium(tmp_path_factory.mktemp("chromium")) as browser:
        yield browser


@contextmanager
def shown(browser: Chromium, *paths: Path, compared: int | None = None) -> Iterator[Chromium]:
    """The page of checkpoints; in the end it has said nothing to the console, and asked nobody else."""
    checkpoints = [(path.name, ucp.open(path)) for path in paths]
    browser.log.clear()
    browser.requests.clear()
    with PageServer(checkpoints, compared=compared) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            browser.go(server.url)
            browser.wait(f"location.href === {json.dumps(server.url)} && document.body.dataset.ready")
            yield browser
            assert browser.log == []
            assert {url for url in browser.requests if not url.startswith(server.url)} <= {"about:blank"}
        finally:
            browser.go("about:blank")
            server.shutdown()
            thread.join()
            for _, checkpoint in checkpoints:
                checkpoint.close()


def rows(browser: Chromium) -> list[str]:
    found: list[str] = browser.value(
        "[...document.querySelectorAll('.row .name')].map((row) => row.textContent)"
    )
    return found


def open_tensor(browser: Chromium, search: str) -> list[list[str]]:
    """Search for a tensor, open it with the keyboard, and return the window of its values."""
    browser.type("#search", search)
    browser.wait("document.querySelectorAll('.row').length === 1")
    browser.key("Enter")
    browser.key("Enter")
    return window(browser)


def window(browser: Chromium) -> list[list[str]]:
    browser.wait("document.querySelector('table.values, [data-panel=values] .error')")
    found: list[list[str]] = browser.value(
        "[...document.querySelectorAll('table.values tbody tr')]"
        ".map((row) => [...row.querySelectorAll('td')].map((cell) => cell.textContent))"
    )
    return found


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


def test_a_chosen_directory_is_opened(chromium: Chromium, tmp_path: Path) -> None:
    ucp.save(tmp_path / "a.ucp", {"w": np.arange(3.0)})
    ucp.save(tmp_path / "home" / "b.ucp", {"mine": np.arange(4, dtype=np.int16)}, storage="plain")
    with shown(chromium, tmp_path / "a.ucp") as page:
        page.choose_files("#directory", [str(tmp_path / "home")])
        page.wait("document.getElementById('title').textContent.endsWith('b.ucp')")
        assert open_tensor(page, "mine") == [["0", "1", "2", "3"]]


def test_a_dropped_directory_is_opened(chromium: Chromium, tmp_path: Path) -> None:
    ucp.save(tmp_path / "a.ucp", {"w": np.arange(3.0)})
    ucp.save(tmp_path / "b.ucp", {"mine": np.arange(4, dtype=np.int16)})
    with shown(chromium, tmp_path / "a.ucp") as page:
        page.drop([str(tmp_path / "b.ucp")])
        page.wait("document.getElementById('title').textContent === 'b.ucp'")
        assert open_tensor(page, "mine") == [["0", "1", "2", "3"]]


def test_the_address_names_checkpoints(chromium: Chromium, tmp_path: Path) -> None:
    ucp.save(tmp_path / "a.ucp", {"w": np.arange(3.0)})
    ucp.save(tmp_path / "b.ucp", {"w": np.arange(4.0)})
    with shown(chromium, tmp_path / "a.ucp", tmp_path / "b.ucp") as page:
        page.go(f"{page.value('location.href')}?checkpoint=checkpoints/1/&checkpoint=checkpoints/0/")
        page.wait(
            "document.getElementById('title').textContent === 'checkpoints/1/' && document.body.dataset.ready"
        )
        assert rows(page) == ["wfloat64 4, changed"]
        assert open_tensor(page, "w") == [["0", "1", "2", "3"]]


def test_a_run_is_shown_by_step(chromium: Chromium, tmp_path: Path) -> None:
    paths = [tmp_path / f"step-{step}.ucp" for step in (30, 20, 10)]
    for path, step in zip(paths, (30, 20, 10), strict=True):
        ucp.save(path, {"w": np.arange(step)}, step=step, annotations={METRICS: {"loss": 3.0 / step}})
    with shown(chromium, *paths) as page:
        page.click("[data-view=run]")
        page.wait("document.querySelectorAll('#run tbody tr').length === 3")
        steps = "[...document.querySelectorAll('#run tbody tr')].map((row) => row.children[1].textContent)"
        assert page.value(steps) == ["10", "20", "30"]
        assert page.value("document.querySelectorAll('#run circle').length") == 3
        page.click("#run tbody button")
        page.wait("document.getElementById('title').textContent === 'step-10.ucp'")


def test_what_changed_is_told(chromium: Chromium, tmp_path: Path) -> None:
    ucp.save(tmp_path / "a.ucp", {"same": np.arange(3.0), "other": np.arange(4.0), "new": np.arange(2.0)})
    ucp.save(
        tmp_path / "b.ucp", {"same": np.arange(3.0), "other": np.arange(4.0) + 1, "gone": np.arange(2.0)}
    )
    with shown(chromium, tmp_path / "a.ucp", tmp_path / "b.ucp", compared=1) as page:
        page.click("#changed")
        page.wait("document.querySelectorAll('.row').length === 3")
        states = {row.split("float64")[0]: row.rpartition(", ")[2] for row in rows(page)}
        assert states == {"other": "changed", "new": "added", "gone": "removed"}


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
    ucp.save(
        tmp_path / "a.ucp", {f"layers.{i // 100}.experts.{i % 100}.w": np.full(1, i) for i in range(count)}
    )
    with shown(chromium, tmp_path / "a.ucp") as page:
        assert page.value("document.body.dataset.ready") == str(count), page.value("document.body.innerText")
        page.click("#flat")
        assert page.value("document.querySelectorAll('.row').length") < 200
        page.value("document.getElementById('list').focus()")
        page.key("End")
        page.wait("document.querySelector('.row.chosen').getAttribute('aria-posinset') === '100000'")
        page.type("#search", "layers.999.experts.99.*")
        page.wait("document.querySelectorAll('.row').length === 1")
        if os.environ.get("UCP_TIMES"):
            print("ready after ms:", page.value("performance.getEntriesByName('ready')[0].startTime"))


def test_the_program_of_the_package_s_page_runs(
    chromium: Chromium, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (block,) = run_by("tests/viewing/test_browser.py", "js/README.md")
    module = block.text.replace("'ucpformat'", "'./browser/index.mjs'")
    monkeypatch.setattr(bundling, "source", lambda name: module if name == "program.mjs" else source(name))
    tensor = np.arange(60, dtype=np.float32).reshape(6, 10)
    ucp.save(tmp_path / "a.ucp", {"tok_embeddings.weight": tensor})
    monkeypatch.setattr(
        "ucpformat.viewing.server.served_parts",
        lambda: {
            **served_parts(),
            "program.js": ("text/javascript", bundling.bundle("program.mjs").encode()),
        },
    )
    with shown(chromium, tmp_path / "a.ucp") as page:
        found = page.value(
            """new Promise((resolve, reject) => {
                const worker = new Worker('program.js');
                worker.onmessage = ({data}) => resolve(data);
                worker.onerror = ({message}) => reject(new Error(message));
                worker.postMessage(new URL('checkpoints/0/', location.href).href);
            })"""
        )
        assert np.array_equal(np.array(found).reshape(4, 4), tensor[:4, :4])


def test_values_that_changed_are_marked(chromium: Chromium, tmp_path: Path) -> None:
    tensor = np.arange(3000.0).reshape(60, 50)
    other = tensor.copy()
    other[1, 2] = -1
    other[59, :] += 2
    ucp.save(tmp_path / "a.ucp", {"w": tensor, "same": tensor + 1})
    ucp.save(tmp_path / "b.ucp", {"w": other, "same": tensor + 1})
    with shown(chromium, tmp_path / "a.ucp", tmp_path / "b.ucp", compared=1) as page:
        assert open_tensor(page, "w")[1][2] == "52"
        marked = "[...document.querySelectorAll('table.values td.changed')].map((cell) => cell.title)"
        assert page.value(marked) == ["compared with: -1"]
        page.click("[data-panel='what changed'] button")
        page.wait("document.querySelector('[data-panel=\"what changed\"] canvas')")
        told = page.value("document.querySelector('[data-panel=\"what changed\"]').innerText")
        assert "51 of 3,000 elements that were read are others (1.70 %); the largest difference is 53" in told
        open_tensor(page, "same")
        page.wait("document.getElementById('tensor').innerText.includes('The same as')")
        assert page.value(marked) == []


def test_a_page_of_its_own_has_values_within_a_size(chromium: Chromium, tmp_path: Path) -> None:
    tensor = np.random.default_rng(0).standard_normal((100, 30)).astype(np.float32)
    ucp.save(tmp_path / "a.ucp", {"w": tensor, "b": np.arange(3.0), HOSTILE[0]: np.arange(2.0)})
    ucp.save(tmp_path / "b.ucp", {"w": tensor * 2, "b": np.arange(3.0)})
    page = tmp_path / "page.html"
    arguments = ["view", str(tmp_path / "a.ucp"), str(tmp_path / "b.ucp"), "--values", "9k", "-o", str(page)]
    done = CliRunner().invoke(main, arguments, catch_exceptions=False)
    assert (done.exit_code, done.stdout.count("values of")) == (0, 2)
    chromium.log.clear()
    chromium.go(page.as_uri())
    chromium.wait("document.body.dataset.ready")
    assert np.array_equal(np.array(open_tensor(chromium, "w"), np.float32), tensor[:8, :6])
    assert chromium.value("document.querySelectorAll('table.values td.changed').length") == 48
    chromium.wait("document.querySelector('[data-panel=\"heat map\"] canvas').width === 30")
    chromium.value(
        "(() => { const input = document.querySelector('[data-panel=values] input');"
        " input.value = 50; input.dispatchEvent(new Event('change')); })()"
    )
    chromium.wait("document.querySelector('[data-panel=values] .error')")
    assert "the first 16 × 12 elements" in chromium.value(
        "document.querySelector('[data-panel=values] .error').textContent"
    )
    assert chromium.log == []


def test_a_page_of_its_own_shows_documents_and_statistics(chromium: Chromium, tmp_path: Path) -> None:
    ucp.save(tmp_path / "a.ucp", {"w": np.arange(3.0)}, step=7)
    page = tmp_path / "page.html"
    arguments = ["view", str(tmp_path / "a.ucp"), "--stats", "-o", str(page)]
    assert CliRunner().invoke(main, arguments, catch_exceptions=False).exit_code == 0
    chromium.log.clear()
    chromium.go(page.as_uri())
    chromium.wait("document.body.dataset.ready")
    assert "step 7" in chromium.value("document.getElementById('facts').textContent")
    assert open_tensor(chromium, "w") == []
    assert "drop the checkpoint" in chromium.value(
        "document.querySelector('[data-panel=values] .error').textContent"
    )
    assert "2" in chromium.value("document.querySelector('[data-panel=statistics] dl').innerText")
    chromium.choose_files("#directory", [str(tmp_path / "a.ucp")])
    chromium.wait("document.getElementById('title').textContent === 'a.ucp'")
    assert open_tensor(chromium, "w") == [["0", "1", "2"]]
    assert chromium.log == [], json.dumps(chromium.log)
