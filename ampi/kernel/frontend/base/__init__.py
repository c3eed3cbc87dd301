"""What all rooms of the frontend build on: values of expressions, sources, names outside of functions, refusals."""
