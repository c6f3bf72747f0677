"""Pauses of the cycle collector: nested, and none that outlasts an error."""

from __future__ import annotations

import gc

import pytest

from ucpformat.gc_pause import paused


def test_pauses_overlap_and_the_last_one_ends_them() -> None:
    first, second = paused, paused
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert not gc.isenabled()
    second.__exit__(None, None, None)
    assert gc.isenabled()


def test_an_error_ends_a_pause() -> None:
    with pytest.raises(RuntimeError), paused:
        raise RuntimeError
    assert gc.isenabled()


def test_a_collector_that_is_off_stays_off() -> None:
    gc.disable()
    try:
        with paused:
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
