"""Lists and sets in kernels, rewritten as arrays before anything is typed."""
