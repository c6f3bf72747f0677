"""What pages name exists: links, files, tests, make targets, options, error codes, Python names and their arguments."""

from __future__ import annotations

import ast
import inspect
import re
import tomllib
from collections.abc import Callable, Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import click
import pytest

import ucpformat as ucp
from tests.documentation.commands import PROGRAMS, makefile_targets
from tests.documentation.markdown import ROOT, Page, page, pages
from ucpformat.errors import REGISTRY

PACKAGE: Final = Path(ucp.__file__).parent  # as installed, which may be elsewhere
SPECIFICATION: Final = tuple(page(path.name) for path in sorted(ROOT.glob("SPEC*.md")))
ALL: Final = (*pages(), page("CHANGELOG.md"), *SPECIFICATION)
USER: Final = tuple(
    one for one in pages() if one.name.startswith(("README", "docs/", "CONTRIBUTING", "SECURITY"))
)


def spans(of: tuple[Page, ...] = ALL) -> Iterator[tuple[str, str]]:
    for one in of:
        for line, text in one.spans:
            yield f"{one.name}:{line}", text


def wrong(claims: Iterator[tuple[str, str]], is_true: Callable[[str], bool]) -> list[str]:
    """The claims that are not true; that there are any is checked, too."""
    found = list(claims)
    assert found
    return [f"{place}: {text}" for place, text in found if not is_true(text)]


def test_every_block_has_a_language() -> None:
    assert [str(block) for one in ALL for block in one.blocks if not block.language] == []


def test_links_and_anchors_lead_somewhere() -> None:
    broken = []
    for one in ALL:
        for line, target in one.links:
            if target.startswith(("http:", "https:")):
                continue
            path, _, anchor = target.partition("#")
            place = ((ROOT / one.name).parent / path if path else ROOT / one.name).resolve()
            if not place.exists() or (anchor and anchor not in page(str(place.relative_to(ROOT))).anchors):
                broken.append(f"{one.name}:{line}: {target}")
    assert broken == []


ROOTS = "tests|docs|benchmarks|conformance|examples|js|schema|ucpformat|requirements"
_PATH = re.compile(rf"(?:{ROOTS})/[\w./-]*[\w/]")


def test_files_that_are_named_exist() -> None:
    def exists(path: str) -> bool:
        root = PACKAGE.parent if path.startswith("ucpformat/") else ROOT
        return any(root.glob(f"{path}*"))  # a run is named without its suffix

    claims = ((place, text) for place, text in spans() if _PATH.fullmatch(text) and text != "schema/v1/")
    assert wrong(claims, exists) == []


def test_pages_that_prose_names_exist() -> None:
    claims = (
        (f"{one.name}:{line}", name)
        for one in ALL
        for line, text in one.prose
        for name in re.findall(r"\bdocs/[\w/-]+\.md", text)
    )
    assert wrong(claims, lambda path: (ROOT / path).exists()) == []


@cache
def known_tests() -> frozenset[str]:
    """Every test's name, and every test file's."""
    files = list((ROOT / "tests").rglob("test_*.py"))
    names = {
        name for path in files for name in re.findall(r"def (test_\w+)", path.read_text(encoding="utf-8"))
    }
    return frozenset(names | {path.name for path in files})


def test_tests_that_are_named_exist() -> None:
    claims = ((place, text) for place, text in spans() if re.fullmatch(r"test_\w+(\.py)?", text))
    assert wrong(claims, known_tests().__contains__) == []


def test_kept_runs_that_are_named_exist() -> None:
    runs = {path.name for path in (ROOT / "benchmarks" / "results").iterdir()}
    claims = (
        (place, text)
        for place, text in spans()
        if re.fullmatch(r"(?:benchmarks/)?(?:results/)?[\w-]+-run-\d+(?:\.json|\.md)?", text)
    )

    assert wrong(claims, lambda text: any(text.rpartition("/")[2] in run for run in runs)) == []


def test_targets_of_make_that_are_named_exist() -> None:
    claims = (
        (place, found[1]) for place, text in spans() if (found := re.fullmatch(r"make ([a-z-]+)", text))
    )
    assert wrong(claims, makefile_targets().__contains__) == []


def test_error_codes_that_are_named_exist() -> None:
    claims = ((place, text) for place, text in spans() if re.fullmatch(r"UCP-E-[A-Z-]+", text))
    assert wrong(claims, REGISTRY.__contains__) == []


@cache
def options() -> frozenset[str]:
    """Every option of every command of ours."""
    found: set[str] = set()

    def collect(command: click.Command) -> None:
        found.update(option for each in command.params for option in (*each.opts, *each.secondary_opts))
        if isinstance(command, click.Group):
            context = click.Context(command)
            for name in command.list_commands(context):
                sub = command.get_command(context, name)
                assert sub is not None
                collect(sub)

    for module in set(PROGRAMS.values()):
        collect(import_module(module).main)
    programs = (*ROOT.glob("examples/*.py"), *ROOT.glob("tests/**/__main__.py"))
    texts = [path.read_text(encoding="utf-8") for path in programs]
    return frozenset(
        found | {"--help"} | {name for text in texts for name in re.findall(r'"(--[a-z-]+)"', text)}
    )


OTHERS: Final = {"--test", "--nproc-per-node", "--editable", "--strict"}
"""Options of programs that are not ours."""


def test_options_that_are_named_exist() -> None:
    claims = (
        (place, option)
        for place, text in spans(pages())
        for option in re.findall(r"(?<![\w-])--[a-z][a-z-]*", text)
        if option not in OTHERS
    )
    assert wrong(claims, options().__contains__) == []


def resolved(dotted: str) -> Any:
    """What a dotted name stands for: from `ucp`, from `ucpformat`, or from the DCP plug-in and its kin."""
    first, *rest = dotted.split(".")
    found: Any = ucp if first in ("ucp", "ucpformat") else getattr(ucp, first)
    for name in rest:
        try:
            found = getattr(found, name)
        except AttributeError:
            if not inspect.ismodule(found):
                raise
            found = import_module(f"{found.__name__}.{name}")
    return found


def exists(dotted: str) -> bool:
    try:
        resolved(dotted)
    except (AttributeError, ImportError):
        return False
    return True


def test_names_of_the_library_exist() -> None:
    claims = (
        (place, found[1])
        for place, text in spans(pages())
        if (found := re.match(r"((?:ucp|ucpformat)(?:\.\w+)+)", text))
        and not text.partition("#")[0].endswith((".py", ".json", ".md"))
    )
    assert wrong(claims, exists) == []


def calls(text: str) -> Iterator[tuple[str, ast.Call]]:
    """The calls of public names in a span of Python."""
    try:
        tree = ast.parse(text)
    except SyntaxError:
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            if name.startswith("ucp.") or name in ucp.__all__:
                yield name, node


def fits(name: str, call: ast.Call) -> bool:
    """Whether the callable takes the named arguments of the call."""
    target = resolved(name)
    parameters = inspect.signature(target).parameters.values()
    if any(one.kind is one.VAR_KEYWORD for one in parameters):
        return True
    taken = {one.name for one in parameters}
    return all(keyword.arg in taken for keyword in call.keywords if keyword.arg)


def test_calls_fit_what_they_call() -> None:
    found = [(place, name, call) for place, text in spans(pages()) for name, call in calls(text)]
    assert len(found) > 5
    assert [f"{place}: {ast.unparse(call)}" for place, name, call in found if not fits(name, call)] == []


@cache
def arguments() -> frozenset[str]:
    """The names of all parameters of what is public, of its methods, and of the adapters' public classes."""
    names = [getattr(ucp, name) for name in ucp.__all__]
    plugin = import_module("ucpformat.integrations.torch_dcp")
    stock = import_module("torch.distributed.checkpoint")
    engine = import_module("ucpformat.conversion.engine.options")
    names += [getattr(plugin, name) for name in plugin.__all__] + [engine, stock.save]
    found: set[str] = set()
    for each in names:
        members = [each, *vars(each).values()] if hasattr(each, "__dict__") else [each]
        for member in members:
            if callable(member):
                try:
                    found.update(inspect.signature(member).parameters)
                except (TypeError, ValueError):
                    continue
    return frozenset(found)


def test_arguments_that_prose_names_exist() -> None:
    """Written `report=` or `check="integrity"`, in the pages about our Python interface."""
    ours = [one for one in USER if one.name in {"README.md", "docs/torch.md", "docs/compression.md"}]
    claims = (
        (place, found[1])
        for place, text in spans(tuple(ours))
        if (found := re.match(r"([a-z_]+)=(?!=)", text))
    )
    assert wrong(claims, arguments().__contains__) == []


def test_variables_of_the_environment_that_are_named_are_looked_at() -> None:
    sources = [*(ROOT / "tests").rglob("*.py"), *PACKAGE.rglob("*.py"), ROOT / "Makefile"]
    text = "\n".join(path.read_text(encoding="utf-8") for path in sources if path.name != "test_claims.py")
    claims = (
        (place, name)
        for place, span in spans()
        for name in re.findall(r"\bUCP_[A-Z_]+", span)
        if name != "UCP_REPOSITORY"
    )
    assert wrong(claims, text.__contains__) == []


def test_extras_that_are_named_exist() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"][
        "optional-dependencies"
    ]
    texts = [(one.name, (ROOT / one.name).read_text(encoding="utf-8")) for one in pages()]
    claims = (
        (name, extra) for name, text in texts for extra in re.findall(r"(?:ucpformat|\.)\[([a-z]+)\]", text)
    )
    assert wrong(claims, extras.__contains__) == []


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("ucp.save", "ucp.save(path, state, nothing=1)"),
        ("ucp.TensorLayout", "ucp.TensorLayout(layout, form=(1,))"),
    ],
)
def test_a_call_that_does_not_fit_is_found(name: str, text: str) -> None:
    ((found, call),) = calls(text)
    assert found == name
    assert not fits(found, call)


@pytest.mark.parametrize("name", ["ucp.nothing", "ucpformat.geometry.Nothing", "ucp.Layout.nothing"])
def test_a_name_that_is_not_there_is_found(name: str) -> None:
    assert not exists(name)
