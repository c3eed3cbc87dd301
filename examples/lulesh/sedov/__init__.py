"""The Sedov blast wave on an unstructured hexahedral mesh, as in LULESH 2.0, over a cubic number of MPI ranks."""
