"""Normalisation passes: every name stands for one array, and array operations become loops over elements."""
