"""The bundler, and the page in one file."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import ucpformat as ucp
from tests.builders import Tensor, save
from ucpformat.cli import main
from ucpformat.viewing import bundle as bundling
from ucpformat.viewing.bundle import bundle
from ucpformat.viewing.page import origin_of, policy, single_page

HAS_NODE = shutil.which("node") is not None


@pytest.mark.parametrize("entry", ["view/page.mjs", "view/worker.mjs"])
def test_a_bundle_is_one_script_and_always_the_same(entry: str, tmp_path: Path) -> None:
    text = bundle(entry)
    assert text == bundle(entry)
    assert not re.search(r"^(import|export)\b", text, re.MULTILINE)
    assert "node:" not in text
    if HAS_NODE:
        (tmp_path / "script.js").write_text(text, encoding="utf-8")
        subprocess.run(["node", "--check", tmp_path / "script.js"], check=True)


@pytest.mark.skipif(not HAS_NODE, reason="there is no Node here")
def test_a_bundle_does_what_its_modules_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    modules = {
        "a.mjs": "import {two as deux, Three} from './lib/b.mjs';\nimport list from './lib/c.mjs';\n"
        "import * as all from './lib/b.mjs';\nconsole.log(deux(), new Three().n, list, all.two());\n",
        "lib/b.mjs": "export {one} from './c.mjs';\nexport const two = () => 2;\nexport class Three {\n  n = 3;\n}\n",
        "lib/c.mjs": "export async function one() {}\nexport default [\n  1,\n];\n",
    }
    monkeypatch.setattr(bundling, "source", modules.__getitem__)
    (tmp_path / "script.js").write_text(bundle("a.mjs"), encoding="utf-8")
    done = subprocess.run(["node", tmp_path / "script.js"], capture_output=True, text=True, check=True)
    assert done.stdout == "2 3 [ 1 ] 2\n"


@pytest.mark.parametrize(
    ("modules", "what"),
    [
        (
            {"a.mjs": "import {b} from './b.mjs';\n", "b.mjs": "import {a} from './a.mjs';\n"},
            "import each other",
        ),
        ({"a.mjs": "export let a = 1;\n"}, "export let a"),
        ({"a.mjs": "import './b.mjs';\n"}, "import './b.mjs'"),
    ],
)
def test_what_the_bundler_does_not_know_is_refused(
    modules: dict[str, str], what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bundling, "source", modules.__getitem__)
    with pytest.raises(ucp.UcpError, match=what):
        bundle("a.mjs")


def test_nothing_that_a_page_carries_ends_its_element() -> None:
    page = single_page([{"label": "</script><script>alert(1)</script>", "source": {"objects": {}}}])
    assert "alert(1)</script>" not in page
    found = re.search(r'id="configuration">(.*?)</script>', page)
    assert found is not None
    assert json.loads(found[1])["checkpoints"][0]["label"] == "</script><script>alert(1)</script>"
    assert "unsafe" not in page
    assert not re.search(r"https?:", page.partition("<body>")[0])


def test_the_command_writes_a_page(tmp_path: Path) -> None:
    ucp.save(tmp_path / "a.ucp", {"w": np.arange(6, dtype=np.float32)})
    ucp.save(tmp_path / "b.ucp", {"w": np.ones(6, dtype=np.float32)}, storage="plain")
    page = tmp_path / "page.html"
    names = [str(tmp_path / "a.ucp"), str(tmp_path / "b.ucp")]
    done = CliRunner().invoke(main, ["view", *names, "-o", str(page), "--stats"], catch_exceptions=False)
    assert done.exit_code == 0
    found = re.search(r'id="configuration">(.*?)</script>', page.read_text())
    assert found is not None
    told = json.loads(found[1])
    assert told["compared"] == 1
    assert told["checkpoints"][0]["statistics"]["w"]["value"]["maximum"] == 5
    objects = told["checkpoints"][0]["source"]["objects"]
    assert "deflated" in objects["ucp.json"]
    assert not any("deflated" in one for key, one in objects.items() if key.startswith("packs/"))


def test_the_command_writes_a_plan(tmp_path: Path) -> None:
    layout = ucp.Layout(ucp.Mesh((ucp.MeshAxis("tp", 2),)), (ucp.Shard("tp", 0, "even"),))
    save(tmp_path / "a.ucp", {("w", "value"): Tensor(np.ones((4, 4)), "float64", layout=layout)})
    rules = [
        {
            "match": "**",
            "layout": {"mesh": 0, "steps": [{"kind": "shard", "axis": "tp", "dim": 1, "rule": "even"}]},
        }
    ]
    patterns = {
        "format": "ucp",
        "format_version": 0,
        "read_features": [],
        "write_features": [],
        "extensions": {},
        "annotations": {},
        "kind": "patterns",
        "parameters": [{"name": "n"}],
        "meshes": [{"axes": [{"name": "tp", "size": "=n"}]}],
        "rules": rules,
    }
    (tmp_path / "columns.json").write_text(json.dumps(patterns))
    arguments = ["view", str(tmp_path / "a.ucp"), "-o", str(tmp_path / "page.html"), "--set", "n=4"]
    to = ["--to", str(tmp_path / "columns.json")]
    assert CliRunner().invoke(main, [*arguments, *to], catch_exceptions=False).exit_code == 0
    found = re.search(r'id="configuration">(.*?)</script>', (tmp_path / "page.html").read_text())
    assert found is not None
    plan = json.loads(found[1])["plan"]
    assert (plan["ranks"], plan["bytes"]) == ([0, 1, 2, 3], 128)
    assert sum(count for _, _, count in plan["moved"]) == 128
    refused = CliRunner().invoke(main, arguments)
    assert (refused.exit_code, "--to" in refused.stderr) == (2, True)


def test_origins_of_urls_are_those_that_the_page_may_ask() -> None:
    assert origin_of("https://bucket.example/run/step-1.ucp") == "https://bucket.example"
    assert origin_of("http://[::1]:8080/x/") == "http://[::1]:8080"
    assert "connect-src 'self' http://a https://b;" in policy(
        "'self'", "'self'", "blob:", ["https://b", "http://a"]
    )
    for url in (
        "s3://bucket/x",
        "https:///x",
        "https://b/x?sign=1",
        "https://u@b/x",
        "https://b; x/y",
        "b/x",
    ):
        with pytest.raises(ucp.UcpError, match="UCP-E-MISMATCH"):
            origin_of(url)


def test_a_url_for_each_checkpoint_and_no_values_beside_it(tmp_path: Path) -> None:
    ucp.save(tmp_path / "a.ucp", {"w": np.arange(6)})
    base = ["view", str(tmp_path / "a.ucp"), "-o", str(tmp_path / "p.html"), "--url", "https://b/a.ucp"]
    for more in (["--values", "1M"], ["--url", "https://b/c.ucp"]):
        assert CliRunner().invoke(main, [*base, *more]).exit_code == 2
    assert not (tmp_path / "p.html").exists()
