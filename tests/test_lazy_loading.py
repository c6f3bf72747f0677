"""What is loaded when: a command waits for what it needs, and a name means one thing whatever came first."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import ucpformat as ucp

FRAMEWORKS = {"torch", "tensorstore", "jax", "safetensors", "deepspeed"}
FOREIGN = {"zarr", "jsonschema", "numcodecs", "fsspec", "rich", "asyncio"}
OURS = {
    "ucpformat.manager",
    "ucpformat.state_dict.async_save",
    "ucpformat.zarr_view",
    "ucpformat.schema",
}


def run(program: str, *arguments: str) -> str:
    """What ``program`` prints in a fresh interpreter."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program, *arguments], check=True, capture_output=True, text=True
    )
    return done.stdout


@pytest.mark.parametrize(
    ("action", "unwanted"),
    [
        ("", FRAMEWORKS | FOREIGN | OURS | {"numpy", "click", "importlib.metadata", "ucpformat.geometry"}),
        ("ucpformat.Layout", FRAMEWORKS | FOREIGN | OURS | {"numpy", "click", "importlib.metadata"}),
        ("ucpformat.open, ucpformat.CheckpointWriter", FRAMEWORKS | FOREIGN | OURS),
        ("ucpformat.validate, ucpformat.CheckpointManager, ucpformat.zarr_store", FRAMEWORKS),
        ("main(['--version'], standalone_mode=False)", FRAMEWORKS | FOREIGN | OURS | {"numpy"}),
        (
            "main(['--help'], standalone_mode=False)",
            FRAMEWORKS | FOREIGN | OURS | {"numpy", "ucpformat.cli.convert", "ucpformat.cli.runs"},
        ),
        ("main(['convert', '--help'], standalone_mode=False)", FRAMEWORKS | FOREIGN | OURS),
        ("main(['inspect', '--help'], standalone_mode=False)", FRAMEWORKS | FOREIGN | OURS),
        ("main(['validate', '--help'], standalone_mode=False)", FRAMEWORKS | (FOREIGN - {"jsonschema"})),
        ("main(['--help'], standalone_mode=False)", FRAMEWORKS),
    ],
)
def test_nothing_is_loaded_before_it_is_used(action: str, unwanted: set[str]) -> None:
    """`numpy` and others are named where they would tell that too much is loaded."""
    program = (
        "import contextlib, io, sys\n"
        "before = {*sys.modules}\n"
        "import ucpformat\n"
        "def main(*arguments, **options):\n"
        "    from ucpformat.cli import main\n"
        "    with contextlib.redirect_stdout(io.StringIO()) as said:\n"
        "        main(*arguments, **options)\n"
        "    assert said.getvalue()\n"
        f"{action}\n"
        "print(*sorted(sys.modules.keys() - before))"
    )
    loaded = set(run(program).split())
    assert "ucpformat" in loaded
    assert not unwanted & loaded


def test_a_conversion_loads_what_it_needs(tmp_path: Path) -> None:
    ucp.save(tmp_path / "c", {"n": 1})
    program = (
        "import sys\n"
        "before = {*sys.modules}\n"
        "from ucpformat.cli import main\n"
        "main(['inspect', sys.argv[1]], standalone_mode=False)\n"
        "main(['convert', sys.argv[1], sys.argv[2], '--to', 'ucp'], standalone_mode=False)\n"
        "print(*sorted(sys.modules.keys() - before))"
    )
    loaded = set(run(program, str(tmp_path / "c"), str(tmp_path / "d")).splitlines()[-1].split())
    assert not (FRAMEWORKS | FOREIGN | OURS) & loaded
    assert ucp.validate(tmp_path / "d") == []


def test_type_checkers_see_what_is_loaded() -> None:
    source = Path(ucp.__file__).read_text(encoding="utf-8")
    (guarded,) = [node for node in ast.parse(source).body if isinstance(node, ast.If) and not node.orelse][:1]
    seen = {
        alias.asname or alias.name: (node.module, alias.name)
        for node in guarded.body
        if isinstance(node, ast.ImportFrom) and node.module != "ucpformat"  # modules of it
        for alias in node.names
    }
    assert set(seen) == set(ucp.__all__)
    for name, (module, attribute) in seen.items():
        assert module is not None
        __import__(module)
        assert getattr(ucp, name) is getattr(sys.modules[module], attribute)


def test_no_subpackage_has_the_name_of_a_function() -> None:
    """Importing `ucpformat.name` would put the subpackage in the function's place."""
    folder = Path(ucp.__file__).parent
    assert not [name for name in ucp.__all__ if (folder / name).exists() or (folder / f"{name}.py").exists()]


def test_a_public_name_can_be_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    own = ucp.validate
    with monkeypatch.context() as patch:
        patch.setattr(ucp, "validate", len)
        assert vars(ucp)["validate"] is len
    assert ucp.validate is own


def test_subpackages_need_no_import_of_their_own() -> None:
    program = "import ucpformat\nprint(ucpformat.geometry.Box.__module__, ucpformat.reader.__name__)"
    assert run(program) == "ucpformat.geometry.box ucpformat.reader\n"


@pytest.mark.parametrize("name", ["nothing", "Zarr_store", "_nothing", "__wrapped__"])
def test_there_are_no_other_names(name: str) -> None:
    with pytest.raises(AttributeError, match=f"'ucpformat' has no attribute '{name}'"):
        getattr(ucp, name)
    with pytest.raises(ImportError):
        exec(f"from ucpformat import {name}")
