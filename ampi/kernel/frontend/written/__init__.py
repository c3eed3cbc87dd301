"""Functions of NumPy that are written as kernels; calls of them are inlined."""
