"""Expressions made of templates are those of ``ast.unparse``: with parentheses only where Python needs them."""

import ast
import random

import pytest

from ampi.kernel.codegen.templates import filled, normalised
from ampi.kernel.ir.intrinsics import ARGUMENTS, TABLE

LEAVES = ("a", "u[i, j]", "1.5", "-1", "-2.5", "1e+300", "np.float32(0.5)", "complex(1.0, -0.0)", "2j", "math.inf")
TEMPLATES = sorted({entry.source for entry in TABLE.values()} | {"selected(x, y, z)", "np.int32(x)", "x * x", "x"})


def drawn(source, depth):
    """A random expression: its text and level, and its tree."""
    if not depth or source.random() < 0.2:
        leaf = source.choice(LEAVES)
        return normalised(leaf), ast.parse(leaf, mode="eval").body
    template = source.choice(TEMPLATES if source.random() < 0.3 else [t for t in TEMPLATES if "(" not in t])
    parts = [drawn(source, depth - 1) for _ in ARGUMENTS]
    trees = dict(zip(ARGUMENTS, (tree for _, tree in parts), strict=True))
    return filled(template, *(text for text, _ in parts)), replaced(ast.parse(template, mode="eval").body, trees)


def replaced(node, trees):
    if isinstance(node, ast.Name):
        return trees.get(node.id, node)
    if isinstance(node, list):
        return [replaced(n, trees) for n in node]
    if isinstance(node, ast.AST):
        return type(node)(**{field: replaced(value, trees) for field, value in ast.iter_fields(node)})
    return node


@pytest.mark.parametrize("seed", range(20))
def test_text_is_that_of_the_tree(seed):
    source = random.Random(seed)
    for _ in range(100):
        (text, _), tree = drawn(source, 4)
        assert text == ast.unparse(ast.fix_missing_locations(tree))


def test_each_template_with_each_operator_as_each_argument():
    for template in TEMPLATES:
        for inner in (t for t in TEMPLATES if "(" not in t):
            for k in range(len(ARGUMENTS)):
                texts = [normalised("a")] * len(ARGUMENTS)
                texts[k] = filled(inner, *map(normalised, "bcde"))
                trees = {n: ast.parse(t, mode="eval").body for n, (t, _) in zip(ARGUMENTS, texts, strict=True)}
                tree = replaced(ast.parse(template, mode="eval").body, trees)
                assert filled(template, *texts)[0] == ast.unparse(ast.fix_missing_locations(tree))
