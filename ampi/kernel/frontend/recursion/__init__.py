"""Recursive functions in kernels, rewritten as loops before anything is typed."""
