"""The language of CUDA kernels: names of ``numba.cuda``, and what they mean inside of a kernel."""
