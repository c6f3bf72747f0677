"""A second JSON Schema engine comes to python-jsonschema's verdict."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ucp_conformance.oracle.problem import RefusalError
from ucp_conformance.oracle.strict_json import parse
from ucp_conformance.resources import schema_validator
from ucp_conformance.vectors import all_vectors

from tests.conformance.suite import CONFORMANCE, ROOT

ENGINE = CONFORMANCE / "schema-engines" / "ajv"
BASE = "https://ucpformat.org/schema/draft/"


@pytest.fixture(scope="session")
def ajv(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which ajv is installed: npm's own cache keeps it between runs."""
    if shutil.which("npm") is None or shutil.which("node") is None:
        pytest.skip("npm is missing: the second schema engine is not compared")
    folder = tmp_path_factory.mktemp("ajv")
    shutil.copy(ENGINE / "package.json", folder)
    command = ["npm", "install", "--no-audit", "--no-fund", "--prefer-offline", "--loglevel=error"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode != 0 and not os.environ.get("CI"):
        pytest.skip(f"npm cannot install ajv here: {done.stderr[-300:]}")
    assert done.returncode == 0, done.stderr
    return folder


def examples() -> Iterator[tuple[str, str, Any]]:
    """Schema name, origin and value of every example of the repository."""
    for path in sorted((ROOT / "schema" / "examples").rglob("*.json")):
        yield path.parent.name, str(path.relative_to(ROOT)), json.loads(path.read_bytes())


def vector_documents() -> Iterator[tuple[str, str, Any]]:
    """Schema name, origin and value of every document of every vector that is JSON."""
    for vector in all_vectors():
        for key, data in sorted(vector.checkpoint.items()):
            if not key.endswith(".json") or key.startswith("atoms/"):
                continue
            kind = "root" if key == "ucp.json" else key.removesuffix(".json").rpartition("-")[2]
            try:
                value = parse(data, at="x", limit=1 << 20)
            except RefusalError:
                continue
            origin = f"{vector.id}: {key}"
            yield kind if kind in ("root", "state", "packs") else "index", origin, value
            if kind == "root":
                yield "envelope", origin, value


def test_ajv_and_python_jsonschema_agree(ajv: Path) -> None:
    documents = [*examples(), *vector_documents()]
    assert len(documents) > 1500
    request = {
        "schemas": [
            json.loads(path.read_bytes()) for path in sorted((ROOT / "schema" / "draft").glob("*.json"))
        ],
        "documents": [
            {"schema": f"{BASE}{kind}.schema.json", "value": value} for kind, _, value in documents
        ],
    }
    done = subprocess.run(
        ["node", ENGINE / "check.mjs", ajv],
        input=json.dumps(request),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    theirs = json.loads(done.stdout)
    ours = [schema_validator(kind).is_valid(value) for kind, _, value in documents]
    differing = [origin for (_, origin, _), a, b in zip(documents, ours, theirs, strict=True) if a != b]
    assert differing == []
    assert {True, False} <= set(ours)
