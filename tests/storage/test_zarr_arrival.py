"""zarr-python knows the extension types by ``import ucpformat``, in whatever order, and is loaded by nobody else."""

from __future__ import annotations

import subprocess
import sys

import pytest

from ucpformat.model.dtype import EXTENSION_DTYPES

CHECK = f"""
import sys, zarr
from zarr.core.dtype import data_type_registry
for name in {[entry.name for entry in EXTENSION_DTYPES]!r}:
    assert name in data_type_registry.contents, name
assert type(zarr.__loader__).__module__ == type(zarr.__spec__.loader).__module__ == "_frozen_importlib_external"
assert not [finder for finder in sys.meta_path if type(finder).__module__.startswith("ucpformat")]
from importlib.resources import files
assert files(zarr).joinpath("__init__.py").is_file()
print("known")
"""


@pytest.mark.parametrize(
    "before",
    [
        "import ucpformat; assert 'zarr' not in __import__('sys').modules",
        "import zarr; import ucpformat",
        "import ucpformat; from zarr.abc.store import Store",
        "import ucpformat; ucpformat.zarr_store",
        "import ucpformat; from importlib.util import find_spec; assert find_spec('zarr').name == 'zarr'",
    ],
)
def test_zarr_knows_the_types_in_any_order(before: str) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", f"{before}\n{CHECK}"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("known\n", "")


def test_zarr_missing_is_missing() -> None:
    program = """
import sys, ucpformat
sys.meta_path[1:] = []
try:
    import zarr
except ModuleNotFoundError as reason:
    print(reason.name)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("zarr\n", "")
