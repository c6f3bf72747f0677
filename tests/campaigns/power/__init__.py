"""Power loss: what is on the disk after it, made of recorded system calls, and judged by readers and validator."""
