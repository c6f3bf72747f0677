"""Types of the JavaScript package: what `npm publish` makes of them, and that the compiler looks."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "js"
MODULES = PACKAGE.parent / ".venv-types" / "node_modules"

pytestmark = [
    pytest.mark.skipif(not MODULES.is_dir(), reason="`make types` has not fetched the compiler"),
    pytest.mark.skipif(shutil.which("node") is None, reason="there is no Node here"),
]

PROGRAM = """
import {beginEpoch, open, openLog, read, readLocals, replay, validate, write} from 'ucpformat';

const checkpoint = open('a.ucp');
const {dtype, shape, bytes} = read(checkpoint, 'w', 'value', {offset: [0], shape: [2]});
const told: [string, number[], number] = [dtype, shape, bytes.length];
const layout = {mesh: {axes: [{name: 'tp', size: 2}]}, steps: [{kind: 'shard', axis: 'tp', dim: 0, rule: 'even'}]};
for (const local of readLocals(checkpoint, 'w', 'value', layout, [[0], [1]])) console.log(local.bytes?.length, told);
for (const {code, at, detail} of validate('a.ucp', 'semantics')) console.log(code.length, at.length, detail.length);
// @ts-expect-error a box has an offset
read(checkpoint, 'w', 'value', {shape: [1]});
// @ts-expect-error there is no such level
validate('a.ucp', 'all');
// @ts-expect-error bytes may be missing
for (const local of readLocals(checkpoint, 'w', 'value', layout, [[0]])) console.log(local.bytes.length);

const slot = {dtype: 'uint8', shape: [2], open: () => ({chunk: () => null})};
const atoms = [{name: 'w', slots: new Map([['value', slot]])}];
console.log(write({path: 'b.ucp', storage: 'packed', chunkBytes: 64, atoms, step: 3}).digest.length);
// @ts-expect-error there is no such storage
write({path: 'b.ucp', storage: 'loose', chunkBytes: 64, atoms});
const sourceless = {name: 'w', slots: new Map([['value', {dtype: 'uint8', shape: [2]}]])};
// @ts-expect-error a slot has a source
write({path: 'b.ucp', storage: 'plain', chunkBytes: 64, atoms: [sourceless]});

const writer = beginEpoch('u.ucplog', {
  firstStep: 0, after: null, ranks: 1, tensors: [{atom: 'w', role: 'gradient', dtype: 'float32', shape: [2]}],
  pieces: [{tensor: 0, rank: 0, offset: [0], shape: [2]}], groups: [[0]],
  optimizer: {type: 'ucp.sgd', profile: {}}, exactness: 'bitwise',
});
const step = {options: [{lr: 0.1}], entries: [{piece: 0, bytes: new Uint8Array(8)}]};
const state: number = writer.write(0, {steps: [step]});
const values: Map<string, Uint8Array> = replay(openLog('u.ucplog'), checkpoint, {allowLoss: true}).values;
console.log(state, values.size);
// @ts-expect-error a step has options
writer.write(0, {steps: [{entries: []}]});
// @ts-expect-error there is no such role
writer.epoch.tensors[0].role = 'weight';
"""


def _tsc(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = ["node", str(MODULES / "typescript" / "bin" / "tsc"), "--typeRoots", str(MODULES / "@types")]
    return subprocess.run([*command, *words], capture_output=True, text=True, check=False, cwd=folder)


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """Return a copy of the package, where other packages look for it."""
    copy = tmp_path / "node_modules" / "ucpformat"
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("test"))
    return copy


def test_declarations_describe_the_package_to_programs(package: Path, tmp_path: Path) -> None:
    made = _tsc(package, "-p", ".", "--noEmit", "false", "--declaration", "--emitDeclarationOnly")
    assert made.returncode == 0, made.stdout
    (tmp_path / "package.json").write_text('{"type": "module"}')
    (tmp_path / "program.mts").write_text(PROGRAM)
    words = ["--strict", "--noEmit", "--module", "nodenext", "--target", "es2024", "--types", "node"]
    done = _tsc(tmp_path, *words, "program.mts")
    assert done.returncode == 0, done.stdout


def test_a_wrong_type_is_found(package: Path) -> None:
    module = package / "lib" / "grid.mjs"
    wrong = "\nfloorDiv('a', {});\nmakeGrid([1], 4, 'large');\nexport const untyped = (a) => a;\n"
    module.write_text(module.read_text() + wrong)
    done = _tsc(package, "-p", ".")
    assert done.returncode != 0
    assert "'string' is not assignable to parameter of type 'number'" in done.stdout
    assert "Parameter 'a' implicitly has an 'any' type" in done.stdout
