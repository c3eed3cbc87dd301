"""Random numbers in kernels."""
