"""What all packages and MPI need: checks, versions, arguments of commands, files, structures of values."""
