"""The language of CUDA kernels: calls of the functions of ``numba.cuda``."""
