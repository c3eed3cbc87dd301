"""NumPy in kernels: functions and methods of arrays, whole-array expressions, structured arrays."""
