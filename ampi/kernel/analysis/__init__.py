"""Analyses of kernels, from the IR to facts about it; they change no program, but mark loops as independent."""
