"""Features: derived, compared, negotiated (SPEC 7.2)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ucpformat.errors import UcpError
from ucpformat.model.compressor import Compressor
from ucpformat.model.envelope import FEATURES, Envelope, feature_set_problems, needed_features, negotiate

COMPRESSORS = {
    "gzip": Compressor("gzip", {"level": 5}),
    "zstd": Compressor("zstd", {"checksum": False, "level": 3}),
    "blosc": Compressor("blosc", {}),
}
compressor_names = st.lists(st.none() | st.sampled_from(sorted(COMPRESSORS)))
feature_sets = st.frozensets(st.sampled_from(["blosc", "unheard-of", "zstd"])).map(sorted).map(tuple)


def compressors(names: list[str | None]) -> list[Compressor | None]:
    return [COMPRESSORS[name] if name else None for name in names]


@given(compressor_names)
def test_needed_features_are_the_compressors_beyond_gzip(names: list[str | None]) -> None:
    assert needed_features(compressors(names)) == {name for name in names if name in {"zstd", "blosc"}}


@given(compressor_names, feature_sets, feature_sets)
def test_exactly_the_needed_features_are_declared(
    names: list[str | None], read: tuple[str, ...], write: tuple[str, ...]
) -> None:
    """UCP-D-009."""
    needed = needed_features(compressors(names))
    envelope = Envelope(read_features=read, write_features=write)
    problems = list(feature_set_problems(envelope, needed, at="ucp.json"))
    # Whether a read feature that nobody has heard of is needed, nobody can say (UCP-V-005).
    told = set(read) & {"blosc", "zstd"}
    assert (problems == []) == (told == needed and not write)
    assert {problem.code for problem in problems} <= {"UCP-E-FEATURE-SET"}
    assert len(problems) == len(needed ^ told) + len(write)


def test_an_unknown_feature_is_refused_before_an_unknown_extension() -> None:
    """UCP-R-008."""
    with pytest.raises(UcpError) as caught:
        negotiate(
            ["zstd", "x"], {"e": {}}, features=frozenset({"zstd"}), known_extensions=frozenset(), at="u"
        )
    assert (caught.value.code, caught.value.at) == ("UCP-E-FEATURE", "u#/read_features")
    assert "x" in caught.value.message


def test_known_and_optional_extensions_pass() -> None:
    negotiate(
        ["zstd"],
        {"known": {}, "optional": {"must_understand": False}},
        features=frozenset({"zstd"}),
        known_extensions=frozenset({"known"}),
        at="u",
    )


def test_features_are_listed_once_and_sorted() -> None:
    names = [feature.name for feature in FEATURES]
    assert names == sorted(set(names))
