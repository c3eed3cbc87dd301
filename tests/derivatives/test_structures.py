"""Structures of arguments, results, seeds and tangents: parts are matched by name, and others are refused."""

import collections
import dataclasses
import time

import numpy
import pytest

import ampi
import ampi.numpy as np

X = numpy.array([1.0, 2.0, 3.0])
ONES, ZEROS = numpy.ones(3), numpy.zeros(3)


def test_seeds_of_dictionaries_go_by_name():
    """They had been taken in the order in which the program wrote them."""
    _, pullback = ampi.vjp(lambda x: {"square": x * x, "same": x * 1.0}, X)
    (found,) = pullback({"same": ONES, "square": ZEROS})
    numpy.testing.assert_array_equal(found, ONES)


def test_tangents_of_dictionaries_go_by_name():
    _, push = ampi.linearize(lambda d: 2.0 * d["a"] + 3.0 * d["b"], {"a": X, "b": X})
    numpy.testing.assert_array_equal(push({"b": ONES, "a": ZEROS}), 3.0 * ONES)


def test_none_stands_for_zeros():
    _, pullback = ampi.vjp(lambda x, y: (x * y, y * y, 3), X, X)
    numpy.testing.assert_array_equal(pullback((None, ONES, None)), [ZEROS, 2.0 * X])
    _, push = ampi.linearize(lambda d: 2.0 * d["a"] + 3.0 * d["b"], {"a": X, "b": X})
    numpy.testing.assert_array_equal(push({"a": None, "b": ONES}), 3.0 * ONES)


OTHER = {
    "other keys": ({"a": ONES, "c": ONES}, r"y_bar has the keys \['a', 'c'\]"),
    "tuple": ((ONES, ONES), "y_bar is a tuple of 2, and belongs to a dict of 2"),
    "fewer": ({"a": ONES}, "y_bar is a dict of 1, and belongs to a dict of 2"),
    "array": (ONES, "y_bar is a ndarray, and belongs to a dict of 2"),
    "deeper": ({"a": ONES, "b": {"c": ONES}}, r"y_bar\['b'\] is a dict of 1, and belongs to a ndarray"),
}


@pytest.mark.parametrize("what", OTHER)
def test_seeds_of_another_structure_are_refused(what):
    """Only the number of arrays had been compared."""
    seed, message = OTHER[what]
    _, pullback = ampi.vjp(lambda x: {"a": x * x, "b": x * 1.0}, X)
    with pytest.raises(ampi.TapeError, match=message):
        pullback(seed)


def test_complex_seeds_and_tangents_of_real_arrays_are_refused():
    """Their imaginary parts had been dropped, as `ampi.jvp` does not allow either."""
    _, pullback = ampi.vjp(lambda x: x * x, X)
    with pytest.raises(ampi.TapeError, match="the seed is complex, its output real"):
        pullback(1j * ONES)
    _, push = ampi.linearize(lambda x: x * x, X)
    with pytest.raises(ampi.TapeError, match="the tangent is complex, its x real"):
        push(1j * ONES)
    with ampi.Tape() as tape:
        x = tape.watch(X)
        y = x * x
    with pytest.raises(ampi.TapeError, match="the seed is complex"):
        tape.gradient(y, x, seeds=1j * numpy.eye(3))


Point = collections.namedtuple("Point", "u v")


class Checked(Point):
    """A named tuple with a constructor of another form."""

    def __new__(cls, both):
        return super().__new__(cls, *both)

    def both(self):
        return self.u * self.v


class Two(list):
    """A list with a constructor of another form."""

    def __init__(self, first, second):
        super().__init__([first, second])
        self.name = "two"


class Named(tuple):
    """A tuple with an attribute."""


def named(items):
    found = Named(items)
    found.name = "named"
    return found


DERIVED = {
    "named tuple": (lambda: Checked((X, 2.0 * X)), lambda s: s.both()),
    "list": (lambda: Two(X, 2.0 * X), lambda s: s[0] * s[1] * len(s.name) / 3.0),
    "tuple": (lambda: named([X, 2.0 * X]), lambda s: s[0] * s[1] * len(s.name) / 5.0),
    "ordered": (lambda: collections.OrderedDict(u=X, v=2.0 * X), lambda s: s["u"] * s["v"]),
    "default": (lambda: collections.defaultdict(list, u=X, v=2.0 * X), lambda s: s["u"] * s["v"] + len(s["w"])),
}


@pytest.mark.parametrize("what", DERIVED)
def test_derived_classes(what):
    """The function gets an object of the class, and so are gradient and result."""
    make, read = DERIVED[what]
    found = ampi.grad(lambda s: np.sum(read(s)))(make())
    assert type(found) is type(make())
    items = list(found.values()) if isinstance(found, dict) else list(found)
    numpy.testing.assert_array_equal(items[:2], [2.0 * X, X])
    y, y_dot = ampi.jvp(lambda s: s, (make(),), (make(),))
    assert type(y) is type(y_dot) is type(make())


@dataclasses.dataclass
class Held:
    u: object
    n: int = 0


@pytest.mark.parametrize(
    "run",
    [lambda f: ampi.jvp(f, X, X), lambda f: ampi.vjp(f, X), lambda f: ampi.linearize(f, X)[1](X)],
    ids=["jvp", "vjp", "linearize"],
)
def test_results_in_objects_are_refused(run):
    """Their derivatives had been None, or zero."""
    with pytest.raises(ampi.TapeError, match="a Held, and derivatives of its attribute 'u' would be lost"):
        run(lambda x: (Held([x * x]), x))
    run(lambda x: (Held(3.0), x))


def test_objects_as_arguments_are_named():
    with pytest.raises(ampi.ActivityError, match="a Held of dtype object; pass arrays of numbers, or tuples"):
        ampi.grad(lambda held: np.sum(held.u))(Held(X))


def product(a, b):
    return np.sum(a * a * b)


def test_arguments_counted_from_the_end():
    numpy.testing.assert_array_equal(ampi.grad(product, -1)(X, X), X * X)
    numpy.testing.assert_array_equal(ampi.grad(product, [-1, 0])(X, X), [X * X, 2.0 * X * X])
    _, dot = ampi.jvp(ampi.grad(product, -1), (X, X), (ONES, None))
    numpy.testing.assert_array_equal(dot, 2.0 * X)


POSITIONS = {
    "twice": ((0, 0), "argnums has argument 0 twice"),
    "twice from the end": ((1, -1), "argnums has argument 1 twice"),
    "beyond": (2, "argnums has 2, but the function was called with 2 positional arguments"),
    "before": (-3, "argnums has -3, but"),
    "name": ("b", "argnums has 'b'; give the positions"),
    "truth": (True, "argnums has True; give the positions"),
}


@pytest.mark.parametrize("what", POSITIONS)
def test_positions_of_arguments(what):
    """The first of two gradients with respect to one argument had been zero."""
    argnums, message = POSITIONS[what]
    with pytest.raises(ampi.TapeError, match=message):
        ampi.grad(product, argnums)(X, X)
    with pytest.raises(ampi.TapeError, match=message):
        ampi.jvp(ampi.grad(product, argnums), (X, X), (ONES, ONES))


# ---------------------------------------------------------------------------------------------------- custom_vjp


def custom(forward, backward, tangent=None):
    @ampi.custom_vjp
    def rule(*arguments):
        return forward(*arguments)[0]

    rule.defvjp(forward, backward)
    if tangent is not None:
        rule.defjvp(tangent)
    return rule


def in_another_order(arguments, tangents):
    (x,), (x_dot,) = arguments, tangents
    return {"two": 2.0 * x, "three": 3.0 * x}, {"three": 3.0 * x_dot, "two": 2.0 * x_dot}


TWO = custom(
    lambda x: ({"two": 2.0 * x, "three": 3.0 * x}, None),
    lambda _, bar: (2.0 * bar["two"] + 3.0 * bar["three"],),
    in_another_order,
)
RUNS = {
    "jvp": lambda f: ampi.jvp(f, X, ONES)[1],
    "linearize": lambda f: ampi.linearize(f, X)[1](ONES),
    "directions": lambda f: ampi.jvp(f, X, numpy.eye(3), vectorised=True)[1].sum(0),
    "hvp": lambda f: ampi.hvp(lambda x: np.sum(f(x) ** 2), X, ONES) / 4.0,
}


@pytest.mark.parametrize("run", RUNS)
def test_custom_tangents_of_dictionaries_go_by_name(run):
    numpy.testing.assert_array_equal(RUNS[run](lambda x: TWO(x)["two"]), 2.0 * ONES)


@pytest.mark.parametrize("run", RUNS)
def test_custom_tangents_of_another_structure_are_refused(run):
    rule = custom(
        lambda x: ({"two": 2.0 * x, "three": 3.0 * x}, None), TWO.backward, lambda a, t: (in_another_order(a, t)[0], t)
    )
    with pytest.raises(ampi.TapeError, match="returned a tuple of 1 as the tangent of a dictionary with"):
        RUNS[run](lambda x: rule(x)["two"])


@pytest.mark.parametrize("run", ["jvp", "linearize", "directions"])
def test_infinite_constants_have_tangent_zero(run):
    """It had been NaN."""
    rule = custom(
        lambda x, limit: (np.minimum(x, limit), None),
        lambda _, bar: (bar, None),
        lambda a, t: (np.minimum(a[0], a[1]), t[0] + t[1]),
    )
    numpy.testing.assert_array_equal(RUNS[run](lambda x: rule(x, float("inf"))), ONES)


def test_an_array_is_no_pair():
    """An array of two rows had been taken for a result and residuals."""
    rule = custom(lambda x: x * x, lambda x, bar: (2.0 * x * bar,), lambda a, t: a[0] * t[0])
    with pytest.raises(ampi.TapeError, match="the forward function of rule must return a tuple of the result and res"):
        ampi.grad(lambda x: np.sum(rule(x)))(numpy.ones((2, 2)))
    with pytest.raises(ampi.TapeError, match="the tangent of rule must return a tuple of the result and its tangent"):
        ampi.jvp(rule, numpy.ones((2, 2)), numpy.ones((2, 2)))


@pytest.mark.parametrize(
    "bars",
    [{"a": ONES}, ONES, (ONES, ONES), {"a": ONES, "b": ONES, "c": ONES}],
    ids=["fewer", "array", "tuple", "more"],
)
def test_adjoints_of_another_structure_are_refused(bars):
    rule = custom(lambda d: (d["a"] * d["b"], d), lambda d, bar: (bars,))
    with pytest.raises(ampi.TapeError, match=r"for argument 0, a dictionary with \['a', 'b'\]; return the same struct"):
        ampi.grad(lambda x: np.sum(rule({"a": x, "b": x * x})))(X)


def test_tuples_of_classes_in_c_are_kept():
    """They are made by their constructors only."""
    at = time.struct_time(range(1, 10))
    (_, found), pullback = ampi.vjp(lambda x: (x * x, at), X)
    assert found == at and type(found) is time.struct_time
    assert type(ampi.value({"at": at})["at"]) is time.struct_time
    numpy.testing.assert_array_equal(pullback((ONES, None))[0], 2.0 * X)
