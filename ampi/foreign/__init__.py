"""What code outside ampi does with active arrays: NumPy in C, SciPy, Numba, FFTW, Matplotlib, the standard library."""
