"""Checkpoints in a browser: the page out of the JavaScript modules, in one file, or served on this machine."""
