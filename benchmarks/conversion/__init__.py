"""Converting what DeepSpeed saved, beside DeepSpeed's own converter and a plain copy of the files."""
