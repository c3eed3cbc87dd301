"""Functions of NumPy that are written as kernels, calls of which are inlined."""
