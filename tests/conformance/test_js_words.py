"""Values in words: the page writes them as `ucp inspect` does."""

from __future__ import annotations

import json
import shutil
import subprocess
from datetime import timedelta
from pathlib import PurePosixPath

import numpy as np
import pytest

from tests.conformance.suite import ROOT
from ucpformat.inspection.plain_words import in_words
from ucpformat.model.values import encode

VALUES = [
    None, True, 3, -1.5, 0.0, -0.0, float("nan"), float("-inf"), 1e16, 2**70, "text", "", b"abcd", b"",
    1 + 2j, -0.5 - 1.25j,
    [], [1, [2]], (), (1,), (0.9, 0.999), {"a": (1, "b"), "b": {}}, {1: 2, (3,): None}, {1, 2}, frozenset({5}),
    np.arange(6, dtype=np.int16).reshape(2, 3), np.array(1.0),
]  # fmt: skip

PROGRAM = """
import {parse} from '%s';
import {inWords} from '%s';
console.log(JSON.stringify(parse(Buffer.from(process.argv[1]), '').map(inWords)));
"""


@pytest.mark.skipif(shutil.which("node") is None, reason="there is no Node here")
def test_the_page_writes_values_as_python_does() -> None:
    encoded = [encode(value, at="") for value in VALUES]
    program = PROGRAM % tuple((ROOT / "js" / name).as_uri() for name in ("lib/json.mjs", "view/words.mjs"))
    others = [encode(value, at="") for value in (timedelta(seconds=3), PurePosixPath("/x"), "it's")]
    words = ["node", "--input-type=module", "-e", program, json.dumps([*encoded, *others])]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    assert found[: len(encoded)] == [in_words(value) for value in encoded]
    assert found[len(encoded) :] == [
        "datetime.timedelta((0, 3, 0))",
        "pathlib.PurePosixPath('/x')",
        '"it\'s"',
    ]
