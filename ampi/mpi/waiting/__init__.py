"""Waiting for other ranks without hanging: the board, deadlocks, meetings, notices."""
