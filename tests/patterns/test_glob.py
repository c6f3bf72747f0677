"""Globs (SPEC-PATTERNS): against Python's regular expressions, which say the same and may take for ever."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ucpformat.errors import UcpError
from ucpformat.patterns import Glob, parse_glob

PIECES = ["a", "b", "1", "10", "é", "\\*", "*", "{x}", "{y}", "{i:int}", "{j:int}"]
COMPONENTS = st.one_of(
    st.lists(st.sampled_from(PIECES), max_size=4).map("".join),
    st.sampled_from(["**", "{p:path}", "a", "b", "*"]),
)
GLOBS = st.lists(COMPONENTS, min_size=1, max_size=5).map(".".join)
NAMES = st.lists(st.text(st.sampled_from("ab10*é"), max_size=4), min_size=1, max_size=6).map(".".join)
TOKEN = re.compile(r"\\(?P<escaped>.)|(?P<star>\*)|\{(?P<name>\w+)(?::(?P<kind>int))?\}|(?P<literal>.)")


def by_regular_expression(glob: str, name: str) -> dict[str, str | int] | None:
    """The captures of a glob that is one; every component ends in a dot here, so that ``**`` needs no other case."""
    pattern = ""
    integers: set[str] = set()
    for component in glob.split("."):
        if component == "**":
            pattern += r"(?:[^.]*\.)*?"
        elif component.endswith(":path}"):
            pattern += rf"(?P<{component[1:-6]}>[^.]*(?:\.[^.]*)*?)\."
        else:
            for token in TOKEN.finditer(component):
                if token["star"]:
                    pattern += "[^.]*?"
                elif token["kind"]:
                    integers.add(token["name"])
                    pattern += rf"(?<![0-9])(?P<{token['name']}>0|[1-9][0-9]{{0,14}})(?![0-9])"
                elif token["name"]:
                    pattern += f"(?P<{token['name']}>[^.]+?)"
                else:
                    pattern += re.escape(token["escaped"] or token["literal"])
            pattern += r"\."
    found = re.fullmatch(pattern, name + ".")
    if found is None:
        return None
    return {key: int(text) if key in integers else text for key, text in found.groupdict().items()}


def glob_or_none(text: str) -> Glob | None:
    """The glob, or None where two wildcards touch."""
    try:
        return parse_glob(text)
    except UcpError:
        return None


@given(glob=GLOBS, name=NAMES)
def test_a_glob_means_what_the_specification_says(glob: str, name: str) -> None:
    """UCP-D-119."""
    parsed = glob_or_none(glob)
    if parsed is not None:
        assert parsed.match(name) == by_regular_expression(glob, name)


@given(glob=GLOBS, data=st.data())
def test_a_name_made_of_a_glob_matches_it(glob: str, data: st.DataObject) -> None:
    parsed = glob_or_none(glob)
    if parsed is None:
        return
    parts = {"*": "", "{x}": "a", "{y}": "b1", "{i:int}": "7", "{j:int}": "10", "\\*": "*"}
    made = []
    for component in glob.split("."):
        if component in ("**", "{p:path}"):
            many = data.draw(
                st.lists(st.sampled_from(["a", "", "1"]), min_size=component != "**", max_size=2)
            )
            made += many
        else:
            made.append(re.sub(r"\\\*|\*|\{\w+(:int)?\}", lambda found: parts[found[0]], component))
    name = ".".join(made)
    found = parsed.match(name)
    expected = by_regular_expression(glob, name) if made else None
    assert found == expected or not made


@given(glob=GLOBS, name=NAMES)
def test_a_template_makes_the_name_that_it_matched(glob: str, name: str) -> None:
    parsed = glob_or_none(glob)
    if parsed is None:
        return
    found = parsed.match(name)
    if found is not None and parsed.is_template:
        assert parsed.fill(found) == name
    assert not parsed.is_template or "*" not in glob.replace("\\*", "")


@pytest.mark.parametrize(
    ("glob", "name", "captures"),
    [
        ("layers.{i:int}.w", "layers.12.w", {"i": 12}),
        ("layers.{i:int}.w", "layers.012.w", None),
        ("layers.{i:int}.w", "layers.1234567890123456.w", None),
        ("w{i:int}1", "w11", None),
        ("{i:int}_{x}", "3_b", {"i": 3, "x": "b"}),
        ("**", "", {}),
        ("**.weight", "weight", {}),
        ("a.**", "a", {}),
        ("a.{rest:path}", "a", None),
        ("a.{rest:path}.b", "a.x.b.y.b", {"rest": "x.b.y"}),
        ("**.{x}.b.**", "b.b.b", {"x": "b"}),
        ("{p:path}.b.{q:path}", "a.b.c.b.d", {"p": "a", "q": "c.b.d"}),
        ("{x}{i:int}", "12", None),
        ("{x}{i:int}", "x12", {"x": "x", "i": 12}),
        ("*.w", "a.b.w", None),
        ("{x}-{y}", "a-b-c", {"x": "a", "y": "b-c"}),
        ("\\{x\\}\\\\", "{x}\\", {}),
        ("ü.*", "ü.ñ", {}),
        ("a", "A", None),
    ],
)
def test_examples(glob: str, name: str, captures: dict[str, str | int] | None) -> None:
    assert parse_glob(glob).match(name) == captures
    if "\\\\" not in glob:
        assert by_regular_expression(glob, name) == captures


@pytest.mark.parametrize(
    "glob",
    ["**.**", "{a:path}.**", "**.{a:path}", "a**", "**b", "*{x}", "{x}{y}", "{x}*", "{x", "x}", "{}", "{1a}",
     "{x:float}", "{a.b}", "{x}.{x}", "x\\", "\\a", "a.b\\.c", "a{x:path}", "{é}", "{x:}"],
)  # fmt: skip
def test_what_is_no_glob_is_refused(glob: str) -> None:
    """UCP-D-119, UCP-D-123."""
    with pytest.raises(UcpError) as caught:
        parse_glob(glob)
    assert caught.value.code == "UCP-E-PATTERN"
    assert glob in caught.value.message.replace("\\\\", "\\")


def test_a_glob_is_short() -> None:
    """UCP-D-120."""
    parse_glob("a" * 1024)
    with pytest.raises(UcpError, match="1024") as caught:
        parse_glob("a" * 1025)
    assert caught.value.code == "UCP-E-LIMIT"


def test_matching_takes_no_step_back() -> None:
    """What a regular expression would need the age of the universe for."""
    glob = parse_glob(".".join(["**.*a*a*a*a*a*a*a*a*b"] * 40))
    assert glob.match(".".join(["a" * 100] * 200)) is None


def test_a_template_refuses_captures_that_do_not_lead_back() -> None:
    glob = parse_glob("a.{x}.{i:int}")
    assert glob.fill({"x": "b", "i": 3}) == "a.b.3"
    wrong: list[dict[str, str | int]] = [
        {"x": "b.c", "i": 3},
        {"x": "", "i": 3},
        {"x": "b", "i": -1},
        {"x": "b", "i": "03"},
    ]
    for captures in wrong:
        with pytest.raises(UcpError, match="does not lead back"):
            glob.fill(captures)


@pytest.mark.parametrize(
    ("glob", "name", "why"),
    [
        ("a.b.c", "a.x.c", (2, "component 2 is 'x', not 'b'")),
        ("a.b.c", "a.b", (2, "the name ends before 'c'")),
        ("a.b", "a.b.c", (2, "the name goes on behind 'b'")),
        ("a.**.c.d", "a.b.x.d", (2, "component 3 is 'x', not 'c'")),
        ("a.**.b.c", "a.c", (2, "what lies between does not fit 'a.**.b.c'")),
        ("a.**.b.**.c", "a.x.c", (2, "what lies between does not fit 'a.**.b.**.c'")),
    ],
)
def test_a_mismatch_is_explained(glob: str, name: str, why: tuple[int, str]) -> None:
    assert parse_glob(glob).match(name) is None
    assert parse_glob(glob).mismatch(name) == why
