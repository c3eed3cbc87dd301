"""Common ground of all rooms: checks, versions, arguments of commands, files, structures of values."""
