"""Collective operations: the table of them, their adjoints, tangents and second derivatives."""
