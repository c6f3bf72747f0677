"""The page in a real Chromium with several checkpoints: runs, what changed, plans."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

import ucpformat as ucp
from tests.builders import Tensor, save
from tests.patterns.documents import document, parsed, rule, shard
from tests.update_log.logs import LogMaker
from tests.viewing.chromium import Chromium
from tests.viewing.looking import MARKS, change, open_tensor, rows, shown
from tests.viewing.screenshots import PICTURES, WORDS, pictures
from ucpformat.cli.log_of_run import LogOfRun
from ucpformat.jsonio import JsonValue
from ucpformat.manager.pace import CADENCE
from ucpformat.manager.run_directory import METRICS
from ucpformat.planning import checkpoint_side, movements, pair, patterns_side

pytestmark = MARKS

TP2 = ucp.Layout(ucp.Mesh((ucp.MeshAxis("tp", 2),)), (ucp.Shard("tp", 0, "even"),))


def test_a_run_is_shown_by_step(chromium: Chromium, tmp_path: Path) -> None:
    paths = [tmp_path / f"step-{step}.ucp" for step in (30, 20, 10)]
    for path, step in zip(paths, (30, 20, 10), strict=True):
        ucp.save(path, {"w": np.arange(step)}, step=step, annotations={METRICS: {"loss": 3.0 / step}})
    with shown(chromium, *paths) as page:
        page.click("[data-view=run]")
        page.wait("document.querySelectorAll('#run tbody tr').length === 3")
        steps = "[...document.querySelectorAll('#run tbody tr')].map((row) => row.children[1].textContent)"
        assert page.value(steps) == ["10", "20", "30"]
        assert page.value("document.querySelectorAll('#run polyline ~ circle').length") == 3
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


def test_a_weight_that_is_no_longer_tied_is_told_and_compared(chromium: Chromium, tmp_path: Path) -> None:
    slot = {"value": ucp.SlotSpec("float64", (3,))}
    tied = [ucp.AtomSpec("emb", slot, aliases=("head",))]
    with ucp.CheckpointWriter(tmp_path / "tied.ucp", tied) as writer:
        writer.write("emb", "value", np.arange(3.0))
    ucp.save(tmp_path / "apart.ucp", {"emb": np.arange(3.0), "head": np.array([0.0, 9.0, 2.0])})
    marked = "[...document.querySelectorAll('table.values td.changed')].map((cell) => cell.title)"
    for first, second, told, other in (
        ("apart", "tied", "no longer an alias of emb, changed", "compared with: 1"),
        ("tied", "apart", "an alias of emb now, changed", "compared with: 9"),
    ):
        with shown(chromium, tmp_path / f"{first}.ucp", tmp_path / f"{second}.ucp", compared=1) as page:
            page.click("#changed")
            page.click("#flat")
            page.wait("document.querySelectorAll('.row').length === 1")
            assert rows(page) == [f"headfloat64 3, {told}"]
            page.click(".row")
            page.wait("document.querySelector('table.values td.changed')")
            assert page.value(marked) == [other]
            assert told in page.value("document.getElementById('tensor').innerText")


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
        assert "51 of 3,000 elements that were read differ (1.70 %); the largest difference is 53" in told
        open_tensor(page, "same")
        page.wait("document.getElementById('tensor').innerText.includes('The same as')")
        assert page.value(marked) == []


def test_a_plan_is_a_matrix_of_ranks(chromium: Chromium, tmp_path: Path) -> None:
    tensor = Tensor(np.arange(64.0).reshape(8, 8), "float64", layout=TP2)
    columns = ucp.Layout(ucp.Mesh((ucp.MeshAxis("tp", 4),)), (ucp.Shard("tp", 1, "even"),))
    save(tmp_path / "a.ucp", {("w", "value"): tensor})
    save(tmp_path / "b.ucp", {("w", "value"): Tensor(tensor.data, "float64", layout=columns)})
    with ucp.open(tmp_path / "a.ucp") as a, ucp.open(tmp_path / "b.ucp") as b:
        plan = movements(pair(checkpoint_side("a", a), checkpoint_side("<b>\u202e", b), "ranks")).to_json()
    with shown(chromium, tmp_path / "a.ucp", tmp_path / "b.ucp", compared=1) as page:
        page.click("[data-view=plan]")
        page.click("#plan [data-plan=other]")
        page.wait("document.querySelector('#plan table')")
        assert "1 slot, 512 B; 128 B stay in place, 384 B are sent." in page.value(
            "document.getElementById('plan').innerText"
        )
    with shown(chromium, tmp_path / "a.ucp", plan=plan) as page:
        page.click("[data-view=plan]")
        titles = page.value(
            "[...document.querySelectorAll('#plan tbody tr')].map((row) => row.cells[1].title)"
        )
        assert titles[:2] == ["rank 0 keeps 64 B", "rank 1 sends 64 B to rank 0"]
        assert "From a to <b>\\u{202e}: 1 slot, 512 B; 128 B stay in place, 384 B are sent." in page.value(
            "document.getElementById('plan').innerText"
        )
        assert page.value("document.querySelectorAll('#plan b').length") == 0
        assert page.value("[...document.querySelectorAll('#plan td.sum')].map((cell) => cell.textContent)") == [
            "192 B", "192 B", "–", "–", "64 B", "64 B", "128 B", "128 B", "",
        ]  # fmt: skip
    ucp.save(tmp_path / "c.ucp", {"w": np.arange(3.0)})
    with shown(chromium, tmp_path / "c.ucp") as page:
        assert page.value("document.querySelector('[data-view=plan]').hidden") is True


def test_the_page_plans_to_other_sizes_and_to_a_layout_that_is_entered(
    chromium: Chromium, tmp_path: Path
) -> None:
    tensors = {
        ("w", "value"): Tensor(np.zeros((8, 8)), "float64", layout=TP2),
        ("b", "value"): Tensor(np.zeros(8), "float64"),
    }
    save(tmp_path / "a.ucp", tensors)
    sums = "[...document.querySelectorAll('%s td.sum')].map((cell) => cell.textContent)"
    with shown(chromium, tmp_path / "a.ucp") as page:
        page.click("[data-view=plan]")
        change(page, "#plan input", 4)
        page.click("#plan button")
        page.wait("document.querySelector('#plan table')")
        told = page.value("document.getElementById('plan').innerText")
        assert "From tp 2 to tp 4: 1 slot, 512 B; 128 B stay in place, 384 B are sent." in told
        assert "1 slot is left out: no layout" in told
        assert page.value(sums % "#plan") == [
            "128 B", "256 B", "–", "–", "–", "128 B", "128 B", "128 B", "",
        ]  # fmt: skip
        change(page, "#plan input", 3)
        page.click("#plan button")
        page.wait("document.getElementById('plan').innerText.includes('8 is not divisible by 3')")
        change(page, "#plan input", 500)
        page.click("#plan button")
        page.wait("document.querySelector('#plan .error')?.textContent.includes('500 ranks are too many')")
        page.click("[data-view=tensors]")
        open_tensor(page, "w")
        text = page.value("document.querySelector('[data-panel=plan] textarea').value")
        assert '"axis":"tp"' in text
        columns = json.dumps(text.replace('"dim":0', '"dim":1'))
        page.value(f"document.querySelector('[data-panel=plan] textarea').value = {columns}")
        page.click("[data-panel=plan] button")
        page.wait("document.querySelector('[data-panel=plan] table')")
        assert page.value(sums % "[data-panel=plan]") == ["128 B", "128 B", "128 B", "128 B", ""]
        for wrong, code in (("{", "UCP-E-JSON"), ('{"mesh":{"axes":[]},"steps":[{}]}', "UCP-E-LAYOUT")):
            page.value(f"document.querySelector('[data-panel=plan] textarea').value = {json.dumps(wrong)}")
            page.click("[data-panel=plan] button")
            page.wait(f"document.querySelector('[data-panel=plan] .error')?.textContent.includes('{code}')")


def test_the_page_plans_by_patterns_with_parameters_that_are_entered(
    chromium: Chromium, tmp_path: Path
) -> None:
    tensor = Tensor(np.zeros((8, 8)), "float64", layout=TP2)
    save(tmp_path / "a.ucp", {("model.layers.0.mlp.up_proj.weight", "value"): tensor, ("w", "value"): tensor})
    columns = document(rule("**", shard(1)), parameters=[{"name": "tp", "description": "<b>how many</b>"}])
    (tmp_path / "columns.json").write_text(json.dumps(columns))
    with ucp.open(tmp_path / "a.ucp") as a:
        source = checkpoint_side("a", a)
        target = patterns_side("columns.json", parsed(rule("**", shard(1))), source, {"tp": 4})
        wanted = movements(pair(source, target, "ranks")).to_json()
    form = "#plan [data-plan=patterns]"
    told = f"document.querySelector('{form}').innerText"
    with shown(chromium, tmp_path / "a.ucp") as page:
        page.click("[data-view=plan]")
        page.choose_files(f"{form} [type=file]", [str(tmp_path / "columns.json")])
        page.wait(f"{told}.includes('<b>how many</b>')")
        page.value(f"document.querySelector('{form}').requestSubmit()")
        # A parameter without a default has to be filled in, which the browser sees to.
        assert page.value(f"document.querySelectorAll('{form} table').length") == 0
        page.type(f"{form} [aria-label='parameter tp']", "x")
        page.click(f"{form} [type=submit]")
        page.wait(f"{told}.includes('tp is an integer, and not x')")
        page.type(f"{form} [aria-label='parameter tp']", "4")
        page.click(f"{form} [type=submit]")
        page.wait(f"document.querySelector('{form} table')")
        assert "From the layouts of this checkpoint to columns.json tp=4: 2 slots, 1.00 KiB" in page.value(
            told
        )
        titles = page.value(f"[...document.querySelectorAll('{form} tbody td')].map((cell) => cell.title)")
        assert len([title for title in titles if " sends " in title and "nothing" not in title]) == len(
            [cell for cell in wanted["moved"] if cell[0] != cell[1]]  # type: ignore[attr-defined]
        )
        page.value(
            f"(() => {{ const choice = document.querySelector('{form} select'); choice.value = 'llama';"
            " choice.dispatchEvent(new Event('change')); })()"
        )
        page.wait(f"document.querySelector('{form} [aria-label=\"parameter layers\"]')")
        # What was filled in stays.
        assert page.value(f"document.querySelector('{form} [aria-label=\"parameter tp\"]').value") == "4"
        page.click(f"{form} [type=submit]")
        page.wait(f"document.querySelector('{form} .error')?.textContent.includes('UCP-E-UNMATCHED')")
        assert '"w"' in page.value(told)
        page.type(f"{form} textarea", "{")
        assert page.value(f"document.querySelector('{form} select').value") == ""
        page.wait(f"document.querySelector('{form} .error')?.textContent.includes('UCP-E-JSON')")


def test_a_run_shows_what_increments_share_its_pace_and_its_log(chromium: Chromium, tmp_path: Path) -> None:
    run = tmp_path / "run"
    tensors = {"kept": np.arange(5000.0), "w": np.zeros(1000)}
    pace: dict[str, JsonValue] = {CADENCE: {"every": 20, "reason": "saving <i>costs</i> 3 %"}}
    ucp.save(run / "step-9.ucp", tensors, step=9)
    tensors["w"] = tensors["w"] + 1
    ucp.save(run / "step-10.ucp", tensors, step=10, base=run / "step-9.ucp", annotations=pace)
    maker = LogMaker(run / "updates.ucplog")
    for epoch, first in ((0, 0), (1, 3)):
        maker.epoch(epoch, first, after=None if epoch == 0 else 0)
        for rank in range(2):
            for step in range(first, first + 4):
                maker.batch(epoch, rank, step)
    told = LogOfRun.of(str(run))
    assert told is not None
    rows = "[...document.querySelectorAll('#run tbody tr')]"
    cells = f"{rows}.map((row) => [...row.cells].map((cell) => cell.textContent))"
    with shown(chromium, run / "step-10.ucp", run / "step-9.ucp", log=told.to_json()) as page:
        page.click("[data-view=run]")
        page.wait("document.querySelectorAll('#run tbody tr').length === 4")
        older, newer, *epochs = page.value(cells)
        assert (older[1], older[3:5]) == ("9", ["–", "–"])
        assert (newer[1], newer[4]) == ("10", "step 9, 39.1 KiB")
        assert [(row[1], row[6]) for row in epochs] == [("0 to 3", "counts"), ("3 to 7", "counts")]
        assert "a checkpoint was due every 20 steps: saving <i>costs</i> 3 %" in page.value(
            "document.getElementById('run').innerText"
        )
        page.drop([str(run)])
        page.wait(
            "document.getElementById('title').textContent === 'run/step-10.ucp' && document.body.dataset.ready"
        )
        page.click("[data-view=run]")
        page.wait("document.querySelectorAll('#run tbody tr').length === 6")
        again = page.value(cells)
        assert [row[0] for row in again[:4]] == [
            "step-9.ucp",
            "run/step-9.ucp",
            "step-10.ucp",
            "run/step-10.ucp",
        ]
        assert [row[1] for row in again[4:]] == ["0 to 3", "from 3, the last batch from 6"]
        assert [row[3:6] for row in again[4:]] == [row[3:6] for row in epochs]


def test_the_words_in_the_pictures_of_the_docs_are_those_of_the_page(
    chromium: Chromium, tmp_path: Path
) -> None:
    """`make pictures` takes them anew."""
    chromium.call(
        "Emulation.setDeviceMetricsOverride", width=1280, height=800, deviceScaleFactor=1, mobile=False
    )
    try:
        found = {name: text.splitlines() for name, text in pictures(chromium, tmp_path)}
    finally:
        chromium.call("Emulation.clearDeviceMetricsOverride")
    assert found == json.loads(WORDS.read_text(encoding="utf-8"))
    assert all((PICTURES / f"viewing-{name}.png").is_file() for name in found)
    page = (PICTURES.parent / "viewing.md").read_text(encoding="utf-8")
    assert all(f"(images/viewing-{name}.png)" in page for name in found)
