"""Patterns and atom maps (SPEC-PATTERNS, SPEC-ATOM-MAPS): documents that say of names what is done with the tensors.

A pattern document gives every slot a layout; an atom map makes other atoms of the atoms there are. Neither is
part of a checkpoint.
"""

from ucpformat.patterns.atom_map_document import AtomMapDocument, parse_atom_map
from ucpformat.patterns.atom_mapping import AtomMapping, MappedSlot, Part, apply_atom_map
from ucpformat.patterns.carrying import carried
from ucpformat.patterns.document import PatternRule, Patterns, parse_patterns
from ucpformat.patterns.glob import Glob, parse_glob
from ucpformat.patterns.library import atom_map_names, load_atom_map, load_patterns, pattern_names
from ucpformat.patterns.parameters import Parameter, Parameters, Settings
from ucpformat.patterns.resolution import AtomShapes, resolve, slot_shapes

__all__ = [
    "AtomMapDocument",
    "AtomMapping",
    "AtomShapes",
    "Glob",
    "MappedSlot",
    "Parameter",
    "Parameters",
    "Part",
    "PatternRule",
    "Patterns",
    "Settings",
    "apply_atom_map",
    "atom_map_names",
    "carried",
    "load_atom_map",
    "load_patterns",
    "parse_atom_map",
    "parse_glob",
    "parse_patterns",
    "pattern_names",
    "resolve",
    "slot_shapes",
]
