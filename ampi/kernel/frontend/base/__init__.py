"""Values of expressions, sources, globals and error messages, for all rooms of the frontend."""
