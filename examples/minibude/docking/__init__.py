"""The parts of the docking program: see ``minibude.py``."""
