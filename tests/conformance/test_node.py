"""The implementation in Node: its own tests, its schemas, and faults planted in it and in the reference."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from numcodecs import blosc
from ucp_conformance import generated as search
from ucp_conformance.connection import Connection
from ucp_conformance.generated import run_pair
from ucp_conformance.results import BAD, Result

import ucpformat as ucp
from tests.builders import ZSTD, result_or_refusal
from tests.conformance.suite import CONFORMANCE, ORACLE, REFERENCE, ROOT
from tests.documentation.markdown import run_by
from ucpformat.errors import UcpError
from ucpformat.model.compressor import Compressor
from ucpformat.storage.compression import decompress

NODE = CONFORMANCE / "drivers" / "node"
PACKAGE = ROOT / "js"

pytestmark = pytest.mark.skipif(shutil.which("node") is None, reason="there is no Node here")

# The reference, whose splits by `ceil` round down.
FAULTY_REFERENCE = """
import runpy, sys
from pathlib import Path
from ucpformat.geometry import intervals, program
right = intervals.part
def part(extent, parts, rule, position, at):
    return right(extent // parts * parts, parts, rule, position, at) if rule == "ceil" else right(
        extent, parts, rule, position, at)
program.part = part
sys.argv = sys.argv[1:]
sys.path.insert(0, str(Path(sys.argv[0]).parent))
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def test_its_own_tests_pass() -> None:
    done = subprocess.run(
        ["node", "--test", PACKAGE / "test", NODE / "test"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-4000:]


@pytest.mark.parametrize(("number", "printed"), [(0, "float32 [ 3, 2 ] 24\n"), (1, "1 [ 0 ]\n")])
def test_the_programs_of_its_page_run(number: int, printed: str, tmp_path: Path) -> None:
    block = run_by("tests/conformance/test_node.py", "js/README.md")[number]
    (tmp_path / "node_modules").mkdir()
    (tmp_path / "node_modules" / "ucpformat").symlink_to(PACKAGE)
    (tmp_path / "program.mjs").write_text(block.text)
    ucp.save(tmp_path / "step-1000.ucp", {"tok_embeddings.weight": np.ones((3, 2), np.float32)})
    done = subprocess.run(["node", "program.mjs"], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, printed), done.stderr


@pytest.mark.skipif(shutil.which("npm") is None, reason="there is no npm here")
def test_what_would_be_published_has_the_library_alone_and_runs(tmp_path: Path) -> None:
    words: list[str | Path] = ["npm", "pack", "--json", "--offline", "--pack-destination", tmp_path, PACKAGE]
    done = subprocess.run(words, capture_output=True, text=True, check=True, cwd=tmp_path)
    (packed,) = json.loads(done.stdout)
    paths = {one["path"] for one in packed["files"]}
    library = {
        path.relative_to(PACKAGE).as_posix()
        for folder in ("lib", "node", "browser")
        for path in (PACKAGE / folder).iterdir()
    }
    assert paths == library | {"LICENSE", "README.md", "package.json"}
    assert (PACKAGE / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()
    with tarfile.open(tmp_path / packed["filename"]) as archive:
        archive.extractall(tmp_path / "node_modules", filter="data")
    (tmp_path / "node_modules" / "package").rename(tmp_path / "node_modules" / "ucpformat")
    ucp.save(tmp_path / "a.ucp", {"w": np.ones((3, 2), np.float32)}, compressor=ZSTD)
    program = (
        "import {open, read} from 'ucpformat'; console.log(read(open('a.ucp'), 'w', 'value').bytes.length);"
    )
    (tmp_path / "program.mjs").write_text(
        program + "\nimport {validate} from 'ucpformat/core'; validate.name;\n"
    )
    done = subprocess.run(["node", "program.mjs"], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "24\n"), done.stderr


def test_its_schemas_are_the_published_ones() -> None:
    """``UCP_REWRITE_DOCS=1`` makes the module anew from `schema/draft`."""
    module = PACKAGE / "lib" / "schemas.mjs"
    names: tuple[str, ...] = (
        "atom",
        "defs",
        "envelope",
        "index",
        "layout",
        "packs",
        "patterns",
        "root",
        "state",
    )
    names += ("update-log", "update-log-batch", "update-log-epoch", "value")
    members = "".join(
        f"  '{name}.schema.json':\n{(ROOT / 'schema' / 'draft' / f'{name}.schema.json').read_text().rstrip()},\n"
        for name in names
    )
    wanted = (
        "/**\n * The schemas that the reader applies, as published: tests/conformance/test_node.py makes this file.\n"
        f" */\n\nexport default {{\n{members}}};\n"
    )
    if os.environ.get("UCP_REWRITE_DOCS"):
        module.write_text(wanted, encoding="utf-8")
    assert module.read_text(encoding="utf-8") == wanted


def imports_of(*folders: Path) -> set[str]:
    return {
        line.rpartition("from ")[2].strip("';")
        for folder in folders
        for path in folder.rglob("*.mjs")
        for line in path.read_text(encoding="utf-8").splitlines()
        if line.startswith(("import ", "export {", "export * ", "} from ")) and " from " in line
    }


def test_it_depends_on_no_package() -> None:
    imports = imports_of(PACKAGE, NODE)
    assert {name for name in imports if not name.startswith(("node:", "./", "../", "#platform"))} == set()


def test_its_core_and_what_browsers_run_import_nothing_of_node() -> None:
    imports = imports_of(PACKAGE / "lib", PACKAGE / "browser")
    assert {name for name in imports if name.startswith("node:") or "/node/" in name} == set()


DECODE = """
import {createInterface} from 'node:readline';
import {decompress} from '%s';
for await (const line of createInterface({input: process.stdin})) {
  const {name, stored, length} = JSON.parse(line);
  let answer = null;
  try {
    const raw = decompress(new Map([['name', name]]), Buffer.from(stored, 'base64'), length, '');
    answer = Buffer.from(raw).toString('base64');
  } catch (error) {
    if (error.code !== 'UCP-E-CODEC') throw error;
  }
  console.log(JSON.stringify(answer));
}
"""


@pytest.fixture(scope="module")
def decode() -> Iterator[Callable[[str, bytes, int], bytes | None]]:
    """Decompress by the package; None where it refuses."""
    program = DECODE % (PACKAGE / "lib" / "codec.mjs").as_uri()
    words = ["node", "--input-type=module", "-e", program]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        incoming, outgoing = process.stdin, process.stdout

        def ask(name: str, stored: bytes, length: int) -> bytes | None:
            question = {"name": name, "stored": base64.b64encode(stored).decode(), "length": length}
            incoming.write(json.dumps(question).encode() + b"\n")
            incoming.flush()
            answer = json.loads(outgoing.readline())
            return None if answer is None else base64.b64decode(answer)

        yield ask
        incoming.close()


@given(st.data())
def test_it_decodes_what_others_encode_and_what_is_damaged_as_they_do(
    decode: Callable[[str, bytes, int], bytes | None], draw: st.DataObject
) -> None:
    """Zstandard of libzstd and Blosc of c-blosc, over data of all kinds, at all levels."""
    typesize = draw.draw(st.sampled_from([1, 2, 3, 4, 8, 16, 255]))
    kind = draw.draw(st.sampled_from(["bytes", "few", "runs", "floats"]))
    count = draw.draw(st.sampled_from([1, 2, 7, 33, 1000, 20_000, 300_000]))
    rng = np.random.default_rng(draw.draw(st.integers(0, 1000)))
    raw = {
        "bytes": lambda: rng.bytes(count),
        "few": lambda: rng.integers(0, 5, count, np.uint8).tobytes(),
        "runs": lambda: np.repeat(rng.integers(0, 60, count // 12 + 1, np.int32), 3).tobytes(),
        "floats": lambda: rng.standard_normal(count // 4 + 1).astype(np.float32).tobytes(),
    }[kind]()
    raw = raw[: len(raw) // typesize * typesize] or bytes(typesize)
    name = draw.draw(st.sampled_from(["zstd", "blosc"]))
    if name == "zstd":
        stored = zstandard.ZstdCompressor(
            level=draw.draw(st.sampled_from([-131072, -7, 1, 3, 6, 12] + ([19, 22] if count < 5000 else []))),
            write_checksum=draw.draw(st.booleans()),
            write_content_size=draw.draw(st.booleans()),
        ).compress(raw)
    else:
        codec = draw.draw(st.sampled_from(["blosclz", "lz4", "lz4hc", "zlib", "zstd"]))
        level, shuffle = draw.draw(st.integers(0, 9)), draw.draw(st.integers(0, 2))
        sizes = draw.draw(st.sampled_from([0, 128, 4096, 65536]))
        stored = blosc.compress(
            np.frombuffer(raw, np.uint8).view(f"V{typesize}"), codec.encode(), level, shuffle, sizes
        )
    assert decode(name, stored, len(raw)) == raw
    assert decode(name, stored, len(raw) + 1) is None
    damaged = bytearray(stored)
    damaged[draw.draw(st.integers(0, len(stored) - 1))] ^= 1 << draw.draw(st.integers(0, 7))
    cut = bytes(damaged[: draw.draw(st.integers(len(stored) // 2, len(stored)))])
    for content in (bytes(damaged), cut):
        found = decode(name, content, len(raw))
        reference = result_or_refusal(partial(decompress, Compressor(name, {}), content, len(raw), at=""))
        # libzstd is laxer with the ends of streams of literals, so a refusal alone may differ.
        assert found is None or (not isinstance(reference, UcpError) and found == bytes(reference))


# The fault shows in about one example of a hundred; the search ends with the first that it finds.
ENOUGH = 3000


def faulty_node(folder: Path) -> str:
    """Node's driver, copied, with the `ceil` of splits rounding down."""
    shutil.copytree(PACKAGE, folder / "js")
    copy = folder / "conformance" / "drivers" / "node"
    shutil.copytree(NODE, copy)
    file = folder / "js" / "lib" / "spans.mjs"
    text = file.read_text(encoding="utf-8")
    assert text.count("const c = ceilDiv(extent, size);") == 1
    file.write_text(text.replace("const c = ceilDiv(extent, size);", "const c = floorDiv(extent, size);"))
    return f"node {copy / 'driver.mjs'}"


def faulty_reference(folder: Path) -> str:
    """The reference's driver with the same fault."""
    file = folder / "faulty.py"
    file.write_text(FAULTY_REFERENCE, encoding="utf-8")
    return f"{sys.executable} {file} {CONFORMANCE / 'drivers' / 'python' / 'driver.py'}"


@contextmanager
def connected(**commands: str) -> Iterator[list[Connection]]:
    found = [Connection(command, label=label, timeout=60.0) for label, command in commands.items()]
    try:
        yield found
    finally:
        for connection in found:
            connection.kill()


def faults(wrong: str, right: str, examples: int) -> dict[str, Result]:
    with connected(wrong=wrong, right=right) as (one, other):
        found = run_pair(one, other, examples=examples, seed_=0)
        found += run_pair(other, one, examples=examples, seed_=0)
    return {result.id: result for result in found if result.outcome in BAD}


@pytest.mark.parametrize("side", ["node", "python"])
def test_a_fault_planted_in_one_of_both_is_blamed_on_it_and_shrunk(
    side: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "SHRINKING_S", 300.0)
    node = f"node {NODE / 'driver.mjs'}"
    found = (
        faults(faulty_node(tmp_path), REFERENCE, ENOUGH)
        if side == "node"
        else faults(faulty_reference(tmp_path), node, ENOUGH)
    )
    assert {result.driver for result in found.values()} == {"wrong"}
    assert found.keys() == {"generated/wrong-to-right:writer", "generated/right-to-wrong:reader"}
    case = found["generated/right-to-wrong:reader"].case
    assert case is not None
    plan = case["plan"]
    assert (plan["dtype"], plan["source"], plan["rewrite"]) == ("uint8", None, None)
    assert sum(plan["shape"]) <= 3
    assert [step["kind"] for step in plan["target"]["steps"]] == ["shard"]


def test_it_agrees_with_the_oracle_where_no_fault_is_planted() -> None:
    assert faults(f"node {NODE / 'driver.mjs'}", ORACLE, 60) == {}
