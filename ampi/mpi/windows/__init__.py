"""One-sided communication: windows, accesses, epochs, and their order in a sweep."""
