"""Lowercase methods: Python objects that contain active arrays."""


class Objects:
    """Methods of all communicators."""


class IntracommObjects:
    """Methods of intracommunicators."""
