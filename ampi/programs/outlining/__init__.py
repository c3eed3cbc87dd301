"""Compiled loops of unmodified programs: a hot loop becomes a kernel if its results remain those of Python."""
