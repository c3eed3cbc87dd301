"""What all of `ampi.mpi` stands on: the table of operations, classes of handles, call sites for messages."""
