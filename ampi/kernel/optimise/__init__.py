"""Optimisation passes for derivative programs: loops that compilers can vectorise and that run on threads."""
