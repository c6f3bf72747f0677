"""What the page shows in a real Chromium of: directories, addresses, files of its own."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from urllib.parse import quote

import numpy as np
import pytest
from click.testing import CliRunner

import ucpformat as ucp
from tests.documentation.markdown import run_by
from tests.update_log.logs import LogMaker
from tests.viewing.bucket import CORS, serving
from tests.viewing.chromium import Chromium
from tests.viewing.looking import HOSTILE, MARKS, change, open_tensor, rows, shown
from tests.viewing.opening import save_many
from ucpformat.cli import main
from ucpformat.cli.log_of_run import LogOfRun
from ucpformat.viewing import bundle as bundling
from ucpformat.viewing.bundle import source
from ucpformat.viewing.page import served_parts

pytestmark = MARKS


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


def test_a_page_that_is_a_file_takes_what_is_dropped(chromium: Chromium) -> None:
    # Chromium hands out nothing below /dev without asking, where the tests may keep their files.
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        home, page = Path(folder) / "home", Path(folder) / "page.html"
        ucp.save(home / "run" / "b.ucp", {"mine": np.arange(4, dtype=np.int16)})
        arguments = ["view", str(home / "run" / "b.ucp"), "-o", str(page)]
        assert CliRunner().invoke(main, arguments, catch_exceptions=False).exit_code == 0
        chromium.log.clear()
        chromium.go(page.as_uri())
        chromium.wait("document.body.dataset.ready")
        chromium.drop([str(page)])
        chromium.wait("document.getElementById('refusal').textContent.startsWith('There is no ucp.json')")
        chromium.drop([str(home)])
        chromium.wait("document.getElementById('title').textContent === 'home/run/b.ucp'")
        assert open_tensor(chromium, "mine") == [["0", "1", "2", "3"]]
        assert chromium.value("document.getElementById('refusal').hidden")
        assert chromium.log == []


def test_a_run_that_has_a_log_alone_shows_it(chromium: Chromium, tmp_path: Path) -> None:
    ucp.save(tmp_path / "a.ucp", {"w": np.arange(3.0)})
    maker = LogMaker(tmp_path / "run" / "updates.ucplog")
    maker.epoch(0, 0, after=None)
    maker.batch(0, 0, 0)
    told = LogOfRun.of(str(tmp_path / "run"))
    assert told is not None
    table = "[...document.querySelectorAll('#run h2, #run td')].map((one) => one.textContent).slice(-8)"
    with shown(chromium, log=told.to_json()) as page:
        assert "an update log and no checkpoint" in page.value("document.getElementById('facts').textContent")
        page.wait("document.querySelector('#run td')")
        served = page.value(table)
    with shown(chromium, tmp_path / "a.ucp") as page:
        page.drop([str(tmp_path / "run")])
        page.wait("[...document.querySelectorAll('#run h2')].some((one) => one.textContent === 'update log')")
        dropped = page.value(table)
    assert (served[0], served[-1]) == ("update log", "counts")
    assert dropped[3:] == served[3:]


def test_an_address_that_the_page_may_not_ask_is_refused_with_what_helps(
    chromium: Chromium, tmp_path: Path
) -> None:
    ucp.save(tmp_path / "a.ucp", {"w": np.arange(3.0)})
    wanted = {
        "http://127.0.0.1:9/a.ucp/": "ucp view --url",
        "http://[": "What to show cannot be read",
        "nowhere/": "UCP-E-NOT-FOUND",
    }
    with shown(chromium, tmp_path / "a.ucp") as page:
        url = page.value("location.href")
        for name, told in wanted.items():
            address = f"{url}?checkpoint={quote(name)}"
            page.go(address)
            page.wait(f"location.href === {json.dumps(address)} && document.body.dataset.ready")
            assert told in page.value("document.getElementById('refusal').textContent")
            assert "Loading" not in page.value("document.body.innerText")


def test_what_is_refused_is_not_told_as_what_was_open_before(chromium: Chromium, tmp_path: Path) -> None:
    for name in ("a.ucp", "b.ucp"):
        ucp.save(tmp_path / name, {"w": np.arange(3.0)}, step=7)
    with shown(chromium, tmp_path / "a.ucp", tmp_path / "b.ucp") as page:
        (tmp_path / "b.ucp" / "ucp.json").write_text("{")
        change(page, "#side-a", 1)
        page.wait("document.getElementById('refusal').textContent.includes('UCP-E-JSON')")
        page.wait("document.getElementById('facts').textContent === 'cannot be opened'")
        assert page.value("document.getElementById('title').textContent") == "b.ucp"


def test_what_is_chosen_last_is_shown_alone(chromium: Chromium, tmp_path: Path) -> None:
    save_many(tmp_path / "many.ucp", 9000)  # parts that several workers read
    for name in ("a", "b"):
        ucp.save(tmp_path / f"{name}.ucp", {name: np.arange(3.0)})
    choose = (
        "((...chosen) => { const input = document.getElementById('side-a'); delete document.body.dataset.ready;"
        " for (const value of chosen) { input.value = value; input.dispatchEvent(new Event('change')); }"
        " return document.querySelectorAll('.row').length; })"
    )
    with shown(chromium, *(tmp_path / f"{name}.ucp" for name in ("a", "many", "b"))) as page:
        assert len(rows(page)) == 1
        assert page.value(f"{choose}(1, 2)") == 0, "rows of a checkpoint that is no longer open"
        page.wait("document.body.dataset.ready")
        page.wait("document.getElementById('fetched').textContent !== ''")
        page.value(f"{choose}(1, 0)")
        page.wait("document.body.dataset.ready")
        assert [row.partition("float64")[0] for row in rows(page)] == ["a"]
        assert page.value("document.getElementById('facts').textContent").count("1 atom;") == 1


def test_a_view_is_of_the_checkpoint_that_is_shown(chromium: Chromium, tmp_path: Path) -> None:
    for name, epoch in (("a", 3), ("b", 4)):
        atoms = [ucp.AtomSpec(name, {"value": ucp.SlotSpec("float64", (3,))})]
        with ucp.CheckpointWriter(tmp_path / f"{name}.ucp", atoms) as writer:
            writer.write(name, "value", np.arange(3.0))
            writer.set_value("epoch", epoch)
    told = "document.getElementById('state').textContent.includes('epoch{}')"
    with shown(chromium, tmp_path / "a.ucp", tmp_path / "b.ucp") as page:
        page.click("[data-view=state]")
        page.wait(told.format(3))
        change(page, "#side-a", 1)
        page.wait(told.format(4))
        page.click("[data-view=map]")
        page.wait("document.getElementById('map').textContent.includes('b 24 B')")
        change(page, "#side-a", 0)
        page.wait("document.getElementById('map').textContent.includes('a 24 B')")


def test_an_update_log_that_cannot_be_read_says_why(chromium: Chromium, tmp_path: Path) -> None:
    ucp.save(tmp_path / "a.ucp", {"w": np.arange(3.0)})
    maker = LogMaker(tmp_path / "run" / "updates.ucplog")
    maker.epoch(0, 0, after=None)
    (tmp_path / "run" / "updates.ucplog" / "log.json").write_text("{")
    told = LogOfRun.of(str(tmp_path / "run"))
    assert told is not None
    why = "document.querySelector('#run .error')?.textContent ?? ''"
    with shown(chromium, log=told.to_json()) as page:
        page.wait(why)
        assert page.value(why).startswith("The update log cannot be read: UCP-E-JSON: log.json")
    with shown(chromium, tmp_path / "a.ucp") as page:
        page.drop([str(tmp_path / "run")])
        page.wait(why)
        assert page.value(why).startswith("The update log cannot be read: UCP-E-JSON: log.json")


def test_the_program_of_the_package_s_page_runs(
    chromium: Chromium, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program, starting = run_by("tests/viewing/test_browser_sources.py", "js/README.md")
    module = program.text.replace("'ucpformat'", "'./browser/index.mjs'")
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
        text = starting.text.replace("step-1000.ucp/", "checkpoints/0/").replace("console.log", "resolve")
        found = page.value(f"new Promise((resolve) => {{ {text} }})")
        assert np.array_equal(np.array(found).reshape(4, 4), tensor[:4, :4])


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


@pytest.mark.parametrize(
    ("headers", "refusal"),
    [
        (CORS, ""),
        ({}, "does not allow this page"),
        (CORS | {"Access-Control-Expose-Headers": "ETag"}, "Access-Control-Expose-Headers"),
    ],
    ids=["all of them", "none", "ranges unseen"],
)
def test_a_page_reads_from_another_origin_that_allows_it(
    headers: dict[str, str], refusal: str, chromium: Chromium, tmp_path: Path
) -> None:
    ucp.save(tmp_path / "bucket" / "run" / "a.ucp", {"w": np.arange(3.0)})
    (tmp_path / "site").mkdir()
    with serving(tmp_path / "bucket", headers) as bucket, serving(tmp_path / "site", {}) as site:
        url, page = f"{bucket.url}run/a.ucp", tmp_path / "site" / "page.html"
        arguments = ["view", str(tmp_path / "bucket/run/a.ucp"), "--url", url, "-o", str(page)]
        assert CliRunner().invoke(main, arguments, catch_exceptions=False).exit_code == 0
        assert f'"source":{{"url":"{url}/"}}' in page.read_text()
        chromium.log.clear()
        for address in (page.as_uri(), f"{site.url}page.html"):
            chromium.go(address)
            chromium.wait(f"location.href === {json.dumps(address)} && document.body.dataset.ready")
            told = chromium.value("document.getElementById('refusal').textContent")
            if refusal:
                assert refusal in told
            else:
                assert open_tensor(chromium, "w") == [["0", "1", "2"]]
                assert told == ""
                elsewhere = "fetch('http://127.0.0.2:9/').then(() => 'came', () => 'refused')"
                assert chromium.value(elsewhere) == "refused"
        chromium.go("about:blank")
        chromium.log.clear()
