"""Checkpointing: time loops whose steps are recomputed for their adjoints, within the available memory."""
