"""Several processes write one checkpoint, and each reads its part of one (SPEC sections 16.4 and 17); no torch."""
