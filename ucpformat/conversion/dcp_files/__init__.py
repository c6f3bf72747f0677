"""Directories of torch Distributed Checkpoint, of which several formats are made: catalogues, fragments, files."""
