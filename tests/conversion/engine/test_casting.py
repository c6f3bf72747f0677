"""Casts as torch rounds them, and nothing that leaves the range."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tests.conversion.jobs import job_of, whole
from ucpformat.conversion.contract.casting import CAST_TARGETS, cast_job
from ucpformat.errors import UcpError


@given(hnp.arrays(np.float32, st.integers(1, 40), elements=st.floats(-60000, 60000, width=32)))
def test_rounding_is_that_of_torch(array: np.ndarray[tuple[int], np.dtype[np.float32]]) -> None:
    for name in ("bfloat16", "float16", "float64"):
        job, cast = cast_job(job_of({"w": {"value": array}}), name)
        assert cast == ["w/value"]
        wanted = torch.from_numpy(array).to(getattr(torch, name))
        found = whole(job)["w", "value"]
        assert found.tobytes() == wanted.view(torch.uint8).numpy().tobytes()


def test_only_floating_point_tensors_are_cast() -> None:
    held = {
        "value": np.ones((2, 3), np.float32),
        "step": np.asarray(3.0, np.float32),
        "mask": np.ones(3, np.bool_),
        "count": np.ones(3, np.int32),
        "phase": np.ones(3, np.complex64),
        "there": np.ones(3, ml_dtypes.bfloat16),
        "scale": np.ones(3, ml_dtypes.float8_e8m0fnu),
        "wide": np.asarray([1.5], np.float64),
    }
    job, cast = cast_job(job_of({"w": held}), "bfloat16")
    assert cast == ["w/value", "w/scale", "w/wide"]
    found = whole(job)
    assert found["w", "value"].dtype == ml_dtypes.bfloat16
    for name in ("step", "mask", "count", "phase", "there"):
        assert found["w", name].dtype == held[name].dtype


def test_what_leaves_the_range_is_refused() -> None:
    fine, _ = cast_job(job_of({"w": {"value": np.asarray([np.inf, -np.inf, np.nan, 1.0])}}), "float16")
    np.testing.assert_array_equal(whole(fine)["w", "value"], [np.inf, -np.inf, np.nan, 1.0])
    job, _ = cast_job(job_of({"w": {"value": np.asarray([1e6, 1.0, -1e6], np.float32)}}), "float16")
    with pytest.raises(UcpError, match=r"w/value: 2 finite numbers") as refusal:
        whole(job)
    assert refusal.value.code == "UCP-E-INEXACT"
    with pytest.raises(UcpError) as refusal:
        cast_job(job, "int8")
    assert refusal.value.code == "UCP-E-DTYPE"
    assert "bfloat16" in CAST_TARGETS
