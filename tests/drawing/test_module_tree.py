from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ucpformat.drawing.module_tree import AtomForm, Module, SlotForm, module_tree, rows_of_tree

names = st.lists(
    st.sampled_from(["a", "b", "0", "1", "2", "3", "07", "", "x y"]), min_size=1, max_size=5
).map(".".join)
forms = st.dictionaries(
    st.sampled_from(["value", "exp_avg", "step"]),
    st.builds(SlotForm, st.sampled_from(["float32", "int8"]), st.just((2, 2)), st.sampled_from([4, 16])),
    min_size=1,
)


def leaves(module: Module) -> tuple[int, int]:
    """Atoms and bytes of atoms, each counted as often as it stands for others."""
    own = sum(slot.nbytes for slot in module.slots.values())
    atoms = int(bool(module.slots))
    for one in module.below:
        below_atoms, below_bytes = leaves(one)
        atoms, own = atoms + below_atoms, own + below_bytes
    return atoms * module.alike, own * module.alike


@given(st.dictionaries(names, forms, max_size=30))
def test_nothing_is_lost_by_folding(atoms: dict[str, dict[str, SlotForm]]) -> None:
    tree = module_tree(AtomForm(name, slots) for name, slots in atoms.items())
    nbytes = sum(slot.nbytes for slots in atoms.values() for slot in slots.values())
    assert (tree.atoms, tree.nbytes) == (len(atoms), nbytes) == leaves(tree)


@given(st.dictionaries(names, forms, max_size=30), st.integers(1, 6), st.sampled_from(["size", "name"]))
def test_rows_have_all_bytes_at_every_depth(
    atoms: dict[str, dict[str, SlotForm]], most: int, sort: str
) -> None:
    tree = module_tree(AtomForm(name, slots) for name, slots in atoms.items())
    rows = list(rows_of_tree(tree, depth=1, sort=sort, most=most))  # type: ignore[arg-type]
    assert rows[0] == (0, tree)
    assert len(rows) <= most + 1
    assert sum(module.nbytes for level, module in rows if level == 1) == tree.nbytes


def tree_of(*atoms: tuple[str, int]) -> Module:
    return module_tree(AtomForm(name, {"value": SlotForm("int8", (size,), size)}) for name, size in atoms)


def test_what_is_alike_is_folded_and_what_is_not_stays_apart() -> None:
    tree = tree_of(
        *((f"blocks.{n}.{w}", 8) for n in range(12) for w in "ab"), ("blocks.12.a", 8), ("head", 4)
    )
    (blocks, head) = tree.below
    assert [(one.name, one.alike, one.atoms) for one in blocks.below] == [("0..11", 12, 24), ("12.a", 1, 1)]
    assert (head.name, head.nbytes) == ("head", 4)


def test_numbers_have_to_follow_one_another() -> None:
    (one,) = tree_of(("e.1.w", 4), ("e.2.w", 4), ("e.4.w", 4)).below
    assert [below.name for below in one.below] == ["1..2.w", "4.w"]


def test_experts_of_layers_are_folded_twice() -> None:
    tree = tree_of(*((f"layers.{n}.experts.{e}.w", 2) for n in range(10) for e in range(64)))
    (one,) = tree.below
    assert (one.name, one.alike, one.atoms, one.nbytes) == ("layers.0..9.experts.0..63.w", 640, 640, 1280)


def test_an_atom_may_have_the_name_of_a_module() -> None:
    (one,) = tree_of(("w", 4), ("w.scale", 1)).below
    assert (one.name, one.nbytes, one.atoms, [below.name for below in one.below]) == ("w", 5, 2, ["scale"])


def test_deep_names_are_no_deep_trees() -> None:
    tree = tree_of((".".join("ab" * 256), 1), (".".join("ab" * 255 + "ac"), 1))
    assert tree.atoms == 2
