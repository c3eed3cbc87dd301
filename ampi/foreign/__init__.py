"""Code outside ampi: how calls of it are intercepted, and what other packages do with active arrays."""
