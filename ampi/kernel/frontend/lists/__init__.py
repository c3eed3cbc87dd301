"""Lists and sets in kernels, rewritten as arrays before type inference."""
