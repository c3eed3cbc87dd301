"""Foundations of `ampi.mpi`: the table of operations, classes of handles, call sites for messages."""
