"""ampi differentiates Python MPI programs as they stand."""
