"""Compiled loops of unmodified programs: one that proves hot becomes a kernel where results stay Python's."""
