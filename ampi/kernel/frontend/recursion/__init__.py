"""Recursive functions in kernels, rewritten as loops before type inference."""
