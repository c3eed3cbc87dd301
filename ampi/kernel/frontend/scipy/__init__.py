"""SciPy's functions in kernels."""
