"""Interception of calls of code outside ampi: Python functions, methods of classes, and functions in C."""
