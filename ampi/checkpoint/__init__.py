"""Checkpointing: time loops whose steps are computed again for their adjoints, in the memory there is."""
