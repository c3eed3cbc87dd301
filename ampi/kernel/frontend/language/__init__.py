"""Python in kernels: names, statements, expressions, loops, calls, and what is refused."""
