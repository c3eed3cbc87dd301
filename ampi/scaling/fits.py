"""Models of times over ranks: c₀ + c₁ pᵃ log₂(p)ᵇ, with exponents from a small set.

This is the performance model normal form of Extra-P with one term (Calotoiu, Hoefler, Poke and Wolf, *Using automated
performance modeling to find scalability bugs in complex codes*, SC13), with negative exponents for strong scaling. For
each pair of exponents the coefficients are those of least squares of relative errors; between the pairs, leave-one-out
cross-validation chooses. Another term is added only if it lowers the error by more than its standard error (the rule
of Hastie, Tibshirani and Friedman, *The Elements of Statistical Learning*, section 7.10).
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

from ampi.scaling.study import ScalingError

POWERS = tuple(
    sign * power
    for power in (1 / 4, 1 / 3, 1 / 2, 2 / 3, 3 / 4, 1.0, 5 / 4, 4 / 3, 3 / 2, 2.0, 3.0)
    for sign in (1, -1)
)
LOGARITHMS = (0, 1, 2)
EXPONENTS = tuple((a, b) for a in (0.0, *POWERS) for b in LOGARITHMS if (a, b) != (0.0, 0))
MIN_POINTS = 4  # for a model with one exponent
FARTHEST = 10**6  # ranks up to which a bend is searched
FLAT = 1e-6  # a relative error below which two models are the same


@dataclasses.dataclass(frozen=True)
class Model:
    """``constant + factor * p**power * log2(p)**logarithm``, and the relative error of its predictions.

    Attributes
    ----------
    error : float
        Root of the mean square of the relative error of leave-one-out predictions.
    points : tuple of float
        The numbers of ranks to which it was fitted.
    """

    constant: float
    factor: float
    power: float
    logarithm: int
    error: float
    points: tuple[float, ...]

    def __call__(self, ranks: float) -> float:
        """The time (or ratio) that the model predicts."""
        return float(self.constant + self.factor * _term(np.array([float(ranks)]), self.power, self.logarithm)[0])

    def __str__(self) -> str:
        terms = [f"{self.constant:.4g}"] if self.constant or not self.factor else []
        if self.factor:
            power = {0.0: "", 1.0: " p"}.get(self.power, f" p^{self.power:.3g}")
            logarithm = ("", " log2(p)", " log2(p)^2")[self.logarithm]
            terms.append(f"{self.factor:.4g}{power}{logarithm}")
        return " + ".join(terms)

    @property
    def bend(self) -> float | None:
        """The number of ranks at which constant and term are equal, where the curve bends.

        None if there is only one of them, or if they are not equal anywhere from 1 rank to `FARTHEST`.
        """
        if not self.constant or not self.factor:
            return None
        ranks = np.geomspace(1, FARTHEST, 20001)
        above = self.factor * _term(ranks, self.power, self.logarithm) > self.constant
        changes = np.flatnonzero(above[1:] != above[:-1])
        return float(ranks[changes[-1] + 1]) if len(changes) else None


def fit(ranks: Sequence[float], values: Sequence[float]) -> Model:
    """The model of some positive values over numbers of ranks.

    Parameters
    ----------
    ranks, values : sequences of float
        At least four different numbers of ranks, from 1 on (Extra-P's authors recommend five), and a value for each.

    Raises
    ------
    ScalingError
        There are fewer, or a value is not positive.

    Examples
    --------
    >>> from ampi.scaling import fits
    >>> print(fits.fit([1, 2, 4, 8, 16], [3.0, 6.0, 12.0, 24.0, 48.0]))
    3 p
    """
    p, y = np.asarray(ranks, float), np.asarray(values, float)
    if len(np.unique(p)) < MIN_POINTS:
        raise ScalingError(
            f"a fit needs {MIN_POINTS} different numbers of ranks at least, and there are {len(np.unique(p))}"
        )
    if not (y > 0).all() or not (p >= 1).all():
        raise ScalingError("a fit needs times above 0, on 1 rank or more")
    levels = [
        [_candidate(p, y, True, None)],
        [_candidate(p, y, False, exponents) for exponents in EXPONENTS],
        [_candidate(p, y, True, exponents) for exponents in EXPONENTS],
    ]
    chosen = levels[0][0][0]
    for level in levels[1:]:
        model, others = min(level, key=lambda found: found[0].error)
        if model.error < FLAT and chosen.error < 10 * FLAT:
            continue
        spread = np.std(others**2, ddof=1) / np.sqrt(len(p))
        if chosen.error**2 > model.error**2 + spread:
            chosen = model
    return chosen


def _term(p: np.ndarray, power: float, logarithm: int) -> np.ndarray:
    return p**power * np.log2(p) ** logarithm


def _columns(p: np.ndarray, constant: bool, exponents: tuple[float, int] | None) -> np.ndarray:
    columns = [np.ones_like(p)] if constant else []
    return np.stack([*columns, *([_term(p, *exponents)] if exponents else [])], axis=1)


def _coefficients(columns: np.ndarray, y: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Least squares of relative errors, with coefficients that are not negative: all of them are costs.

    Each row of `weights` (0 or 1 for each point) is a separate problem, with a row of the result.
    """
    relative = columns / y[:, None]
    scale = relative.max(axis=0)
    scaled = relative / scale
    gram = np.einsum("kn,ni,nj->kij", weights, scaled, scaled)
    right = weights @ scaled
    alone = right / np.diagonal(gram, axis1=1, axis2=2)  # each column by itself
    if columns.shape[1] == 1:
        return alone / scale
    product, mixed = gram[:, 0, 0] * gram[:, 1, 1], gram[:, 0, 1]
    determinant = np.maximum(product - mixed**2, 1e-300)
    first = (gram[:, 1, 1] * right[:, 0] - mixed * right[:, 1]) / determinant
    second = (gram[:, 0, 0] * right[:, 1] - mixed * right[:, 0]) / determinant
    both = np.stack([first, second], axis=1)
    usable = (both >= 0).all(axis=1) & (determinant > 1e-12 * product)
    better = np.eye(2)[np.argmax(right * alone, axis=1)] * alone  # where one would be negative, the other alone is best
    return np.where(usable[:, None], both, better) / scale


def _candidate(
    p: np.ndarray, y: np.ndarray, constant: bool, exponents: tuple[float, int] | None
) -> tuple[Model, np.ndarray]:
    """A model with these exponents, and its relative errors where each point in turn is left out."""
    columns = _columns(p, constant, exponents)
    without = _coefficients(columns, y, 1.0 - np.eye(len(p)))
    errors = (columns * without).sum(axis=1) / y - 1.0
    found = list(_coefficients(columns, y, np.ones((1, len(p))))[0])
    first = found.pop(0) if constant else 0.0
    power, logarithm = exponents or (0.0, 0)
    error = float(np.sqrt(np.mean(errors**2)))
    return Model(float(first), float(found[0]) if found else 0.0, power, logarithm, error, tuple(p)), errors


def described(model: Model, what: str) -> str:
    """A description of a ratio's bend by its model, for the terminal."""
    if not model.factor:
        return f"{what} is {model.constant:.3g} on all numbers of ranks, and does not bend"
    if model.bend is None:
        return f"{what} goes as {model} without a bend"
    growing = (
        _term(np.array([model.bend * 2]), model.power, model.logarithm)[0]
        > _term(np.array([model.bend]), model.power, model.logarithm)[0]
    )
    where = "beyond what was measured" if model.bend > max(model.points) else "within what was measured"
    after = "the term with p is the larger one" if growing else f"it is nearly flat, at {model.constant:.3g}"
    return f"{what} bends at about {model.bend:.3g} ranks ({where}): from there on {after}"
