"""Active arrays in code outside ampi: NumPy's C code, SciPy, Numba, FFTW, Matplotlib, the standard library."""
