"""Functions that are kernels to the differentiator, and run by Python: none of them is compiled."""


class recursive:
    """Decorates a function that calls itself."""

    def __init__(self, function):
        self.py_func = function

    def __call__(self, *arguments, **keywords):
        return self.py_func(*arguments, **keywords)
