"""Optimisation of derivative programs, IR -> IR: loops that compilers vectorise, and that run on threads."""
