"""Read the files of a DeepSpeed checkpoint as typed records, and check that they belong together."""
