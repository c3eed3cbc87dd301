"""Derivative rules of NumPy's functions, a table for each kind; `ampi.functions` and `ampi.ufuncs` look them up."""
