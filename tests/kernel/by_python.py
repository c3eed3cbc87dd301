"""Functions that are differentiated as kernels but run by Python, without compilation."""

import ast

import numpy as np


class recursive:
    """Decorates a function that calls itself."""

    def __init__(self, function):
        self.py_func = function

    def __call__(self, *arguments, **keywords):
        return self.py_func(*arguments, **keywords)


def apart(value):
    """A copy of an array, any other value itself."""
    return value.copy() if isinstance(value, np.ndarray) else value


class Apart(ast.NodeTransformer):
    """Makes assignments to elements and parts of arrays copy their values first (`apart`).

    Numba does so, too; NumPy does not if values along one axis have a step of the same sign as the target's: in
    ``x[::2] = x[:3]`` it reads elements that it has just written.
    """

    def visit_Assign(self, node):
        self.generic_visit(node)
        if not any(isinstance(n, ast.Subscript) for target in node.targets for n in ast.walk(target)):
            return node
        places = []
        targets = [self.named(target, places) for target in node.targets]
        made = [ast.Assign(targets, node.value)]
        for name, target in places:
            value = ast.Name(name, ast.Load())
            if isinstance(target, ast.Subscript):
                value = ast.Call(ast.Name("apart", ast.Load()), [value], [])
            made.append(ast.Assign([target], value))
        return [ast.fix_missing_locations(ast.copy_location(n, node)) for n in made]

    def named(self, target, places):
        """A target in which every assigned place is replaced by a name."""
        if isinstance(target, ast.Tuple | ast.List):
            return ast.Tuple([self.named(t, places) for t in target.elts], ast.Store())
        if isinstance(target, ast.Starred):
            return ast.Starred(self.named(target.value, places), ast.Store())
        name = f"_assigned_{len(places)}"
        places.append((name, target))
        return ast.Name(name, ast.Store())
