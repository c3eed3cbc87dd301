"""What all packages stand on and MPI needs as well: checks, versions, arguments of commands, files, structures of values."""
