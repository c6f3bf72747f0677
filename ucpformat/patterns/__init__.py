"""Patterns and atom maps (SPEC 14): documents that say of names what is done with the tensors.

A pattern document gives every slot a layout; an atom map makes other atoms of the atoms there are. Neither is
part of a checkpoint.
"""

from ucpformat.patterns.document import PatternRule, Patterns, parse_patterns
from ucpformat.patterns.glob import Glob, parse_glob
from ucpformat.patterns.library import load_patterns, pattern_names
from ucpformat.patterns.parameters import Parameter, Parameters, Settings
from ucpformat.patterns.resolution import AtomShapes, resolve, slot_shapes

__all__ = [
    "AtomShapes",
    "Glob",
    "Parameter",
    "Parameters",
    "PatternRule",
    "Patterns",
    "Settings",
    "load_patterns",
    "parse_glob",
    "parse_patterns",
    "pattern_names",
    "resolve",
    "slot_shapes",
]
