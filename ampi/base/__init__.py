"""Used by all packages: checks, versions, arguments of commands, files, structures of values."""
