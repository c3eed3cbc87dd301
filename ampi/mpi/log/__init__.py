"""The log of communication on each communicator, and what the ranks agree on before a sweep."""
