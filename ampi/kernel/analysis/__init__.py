"""Analyses of kernels, from the IR to facts about it; some also mark independent loops or name outcomes."""
