"""Interception of calls to code outside ampi: Python functions, methods of classes, and C functions."""
