"""Patterns in the JavaScript package, and the page's plans by them, against the library."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import ucpformat as ucp
from tests.builders import Tensor, save
from tests.conformance.suite import ROOT
from tests.patterns.documents import document, rule, shard
from tests.patterns.test_expression import EXPRESSIONS, SCOPE, VALUES
from tests.patterns.test_glob import GLOBS, NAMES
from tests.patterns.test_resolution import DEFECTS
from ucpformat.errors import UcpError
from ucpformat.geometry import Layout, Mesh, MeshAxis, Shard
from ucpformat.model.layout_json import mesh_to_json, step_to_json
from ucpformat.patterns import load_patterns, parse_glob, parse_patterns, pattern_names, resolve
from ucpformat.patterns.expression import parse_expression
from ucpformat.planning import checkpoint_side, movements, pair, patterns_side

pytestmark = pytest.mark.skipif(shutil.which("node") is None, reason="there is no Node here")

Answer = dict[str, Any]
Ask = Callable[..., Answer]

PROGRAM = """
import {createInterface} from 'node:readline';
import {parseExpression, valueOf} from '%(lib)s/expressions.mjs';
import {matchGlob, parseGlob} from '%(lib)s/globs.mjs';
import {PatternResolver, parsePatterns} from '%(lib)s/patterns.mjs';
const METHODS = {
  glob({glob, name}) {
    const found = matchGlob(parseGlob(glob), name);
    return found && Object.fromEntries(found);
  },
  expression: ({text, scope, values}) => valueOf(
    parseExpression(text, new Map(Object.entries(scope))), new Map(Object.entries(values))),
  resolve({patterns, settings, atoms}) {
    const parsed = parsePatterns(new TextEncoder().encode(patterns));
    const resolver = new PatternResolver(parsed, new Map(Object.entries(settings)));
    return atoms.map(([atom, slot, shape]) => resolver.layoutOf(atom, slot, shape));
  },
};
for await (const line of createInterface({input: process.stdin})) {
  const {method, ...parameters} = JSON.parse(line);
  let answer;
  try {
    answer = {result: METHODS[method](parameters)};
  } catch (error) {
    answer = error.code ? {code: error.code, at: error.at, detail: error.detail} : {defect: String(error.stack)};
  }
  console.log(JSON.stringify(answer));
}
"""


@pytest.fixture(scope="module")
def ask() -> Iterator[Ask]:
    """Ask the package."""
    words = ["node", "--input-type=module", "-e", PROGRAM % {"lib": (ROOT / "js" / "lib").as_uri()}]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        incoming, outgoing = process.stdin, process.stdout

        def answer(method: str, **parameters: object) -> Answer:
            incoming.write(json.dumps({"method": method, **parameters}) + "\n")
            incoming.flush()
            found: Answer = json.loads(outgoing.readline())
            assert "defect" not in found, found
            return found

        yield answer
        incoming.close()


def result_or_code(run: Callable[[], object]) -> Answer:
    try:
        return {"result": run()}
    except UcpError as refusal:
        return {"code": refusal.code, "at": refusal.at}


def alike(found: Answer, wanted: Answer, *, place: bool = True) -> None:
    assert {name: found[name] for name in wanted if place or name != "at"} == {
        name: value for name, value in wanted.items() if place or name != "at"
    }


@given(glob=GLOBS, name=NAMES)
@example(glob="a{x}.{i:int}b", name="aé.007b")
@example(glob="{x}{i:int}", name="layer10")
@example(glob="*" * 2, name="a")
@example(glob="x" * 1025, name="a")
@example(glob="a.{b", name="a")
@example(glob="a\\b", name="a")
def test_globs_match_alike(ask: Ask, glob: str, name: str) -> None:
    wanted = result_or_code(lambda: parse_glob(glob).match(name))
    alike(ask("glob", glob=glob, name=name), wanted, place=False)


@given(text=EXPRESSIONS)
@example(text="9007199254740991 + 1")
@example(text="94906267 * 94906267")
@example(text="(1 - 8) // 4")
@example(text="(1 - 9007199254740991) // 2")
@example(text="shape")
@example(text="shape + 1")
@example(text="2x")
@example(text="(" * 33 + "1" + ")" * 33)
@example(text="a\tb")
@example(text="007")
def test_expressions_have_the_same_values(ask: Ask, text: str) -> None:
    def value() -> object:
        found = parse_expression(text, SCOPE).value(VALUES)
        return list(found) if isinstance(found, tuple) else found

    alike(ask("expression", text=text, scope=SCOPE, values=VALUES), result_or_code(value), place=False)


@pytest.mark.parametrize(("changes", "code", "at"), DEFECTS)
def test_documents_are_refused_alike(ask: Ask, changes: dict[str, Any], code: str, at: str) -> None:
    found = ask("resolve", patterns=json.dumps(document(**changes)), settings={}, atoms=[])
    # Which of a list it is that is not known, the two say each in their way.
    assert (found["code"], found["at"].partition("#")[0]) == (code, "patterns.json")
    if code == "UCP-E-PATTERN":
        assert found["at"] == f"patterns.json#{at}"


def layouts_of(text: str, settings: dict[str, Any], atoms: list[tuple[str, str, list[int]]]) -> list[Any]:
    shapes: dict[str, dict[str, tuple[int, ...]]] = {}
    for atom, slot, shape in atoms:
        shapes.setdefault(atom, {})[slot] = tuple(shape)
    found = resolve(parse_patterns(text.encode()), shapes, settings)
    layouts = [found.get((atom, slot)) for atom, slot, _ in atoms]
    return [
        None
        if layout is None
        else {"mesh": mesh_to_json(layout.mesh), "steps": [step_to_json(step) for step in layout.steps]}
        for layout in layouts
    ]


NAMES_OF_MODELS = [
    f"{prefix}{layer}.{part}.weight"
    for prefix in ("model.layers.", "decoder.layers.", "gpt_neox.layers.", "transformer.h.", "h.")
    for layer in (0, 3)
    for part in (
        "self_attn.q_proj", "self_attention.linear_qkv", "mlp.linear_fc1", "mlp.experts.linear_fc2",
        "block_sparse_moe.experts.1.w2", "attention.query_key_value", "mlp.dense_4h_to_h", "attn.c_attn",
        "self_attention.query_key_value", "input_layernorm",
    )
] + ["embed", "model.embed_tokens.weight", "lm_head.weight", "embedding.word_embeddings.weight"]  # fmt: skip


@given(
    st.sampled_from(pattern_names()),
    st.dictionaries(
        st.sampled_from(["tp", "pp", "dp", "ep", "layers", "kv_heads", "heads", "experts"]),
        st.sampled_from([1, 2, 4, 8]),
        max_size=5,
    ),
    st.lists(st.sampled_from(NAMES_OF_MODELS), min_size=1, max_size=4, unique=True),
    st.lists(st.sampled_from([1, 8, 48, 96]), min_size=1, max_size=3),
)
def test_ready_made_patterns_make_the_same_layouts(
    ask: Ask, name: str, settings: dict[str, int], atoms: list[str], shape: list[int]
) -> None:
    text = json.dumps(load_patterns(name).to_json())
    slots = [(atom, slot, shape) for atom in atoms for slot in ("value", "exp_avg", "step")]
    found = ask("resolve", patterns=text, settings=settings, atoms=slots)
    wanted = result_or_code(lambda: layouts_of(text, settings, slots))
    if "code" in wanted and "code" in found:
        # Of several slots that are refused the library looks for those without a rule last.
        one_by_one = {
            result_or_code(partial(layouts_of, text, settings, [slot])).get("code") for slot in slots
        }
        assert found["code"] in one_by_one
    else:
        alike(found, wanted)


PLAN = """
import {DirectoryStore} from '%s';
import {Session} from '%s';
const [path, patterns, settings] = process.argv.slice(1);
const session = new Session(new DirectoryStore(path));
console.log(JSON.stringify(session.patternPlan({patterns, settings: JSON.parse(settings), label: 'mine'})));
"""


@pytest.mark.parametrize("tp", [1, 2, 4])
def test_a_checkpoint_s_plan_by_patterns_is_that_of_ucp_plan(tp: int, tmp_path: Path) -> None:
    patterns = document(
        rule("layers.{layer:int}.**", shard("=layer % 2"), {"kind": "flatten"},
             {"kind": "shard", "axis": "dp", "dim": 0, "rule": "ceil"}, slots="exp_avg"),
        rule("layers.{layer:int}.**", shard("=layer % 2"), {"kind": "only", "axis": "dp", "coordinates": [1, 0, 0]}),
        {"match": "left", "layout": None},
        rule("**"),
        meshes=[{"axes": [{"name": "dp", "size": 2}, {"name": "tp", "size": "=tp"}]}],
    )  # fmt: skip
    saved = Layout(Mesh((MeshAxis("tp", 2),)), (Shard("tp", 0, "even"),))
    tensors = {
        (f"layers.{layer}.w", slot): Tensor(np.zeros((8, 16), dtype), dtype, layout=saved)
        for layer in range(5)
        for slot, dtype in (("value", "float32"), ("exp_avg", "float64"))
    } | {
        (name, "value"): Tensor(np.zeros((4, 4)), "float64", layout=saved) for name in ("left", "norm")
    } | {("alone", "value"): Tensor(np.zeros(3), "float64")}  # fmt: skip
    save(tmp_path / "a.ucp", tensors)
    text = json.dumps(patterns)
    with ucp.open(tmp_path / "a.ucp") as a:
        source = checkpoint_side("a", a)
        target = patterns_side("mine", parse_patterns(text.encode()), source, {"tp": tp})
        wanted = movements(pair(source, target, "ranks")).to_json()
    program = PLAN % tuple((ROOT / "js" / name).as_uri() for name in ("node/store.mjs", "view/session.mjs"))
    words = ["node", "--input-type=module", "-e", program, str(tmp_path / "a.ucp"), text]
    words.append(json.dumps([["tp", tp]]))
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["ranks"] == wanted["ranks"]
    assert sorted(cell for cell in found["moved"] if cell[2]) == wanted["moved"]
    assert (found["slots"], found["bytes"]) == (wanted["slots"], wanted["bytes"])
    assert dict(found["left"]) == {"no layout": 1, "the patterns leave it alone": 1}
    assert found["to"] == f"mine tp={tp}"
