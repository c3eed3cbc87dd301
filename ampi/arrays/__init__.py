"""Arrays on a tape: the array type, scalars and elements, ufuncs, reductions, functions, indexing and assignment."""
