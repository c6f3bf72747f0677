"""The ready-made pattern documents: they parse, and are found by name."""

from __future__ import annotations

import pytest

from ucpformat import schema
from ucpformat.errors import UcpError
from ucpformat.patterns import load_patterns, pattern_names


@pytest.mark.parametrize("name", pattern_names())
def test_a_ready_made_document_is_sound_and_explains_its_parameters(name: str) -> None:
    patterns = load_patterns(name)
    assert list(schema.problems("patterns", patterns.to_json(), name)) == []
    assert patterns.to_json()["description"]
    assert all(parameter.description for parameter in patterns.parameters.entries)


def test_an_unknown_name_is_refused_with_those_there_are() -> None:
    with pytest.raises(UcpError, match="llama"):
        load_patterns("no-such-model")
