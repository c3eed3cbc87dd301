"""Moving the poses downhill: where does the ligand go from each of them, and how well does it fit there?

The poses know nothing of one another, so the gradient of the sum of their energies holds the gradients of all of them.
SciPy's L-BFGS-B minimises many poses at once as one problem. It has one length of step for all, so poses of similar
energies are put together.
"""

import numpy
import scipy.optimize

from . import energy, kernels, sensitivity
from .backend import value

ITERATIONS = 20
ARM = 5.0  # Å: as far as an atom typically moves when the ligand turns by one radian


def lower(deck, iterations=ITERATIONS, batch=kernels.BLOCK):
    """Minimise the energy of each pose. Local: every rank has its own poses.

    Parameters
    ----------
    iterations : int
        Steps of L-BFGS-B for each batch.
    batch : int
        Poses that are minimised together.

    Returns
    -------
    poses : array, shape (6, poses)
    energies : array, shape (poses,)
        Never higher than before.
    """
    before = numpy.array(value(energy.pose_energies(deck)))
    poses, after = numpy.array(value(deck.poses)), before.copy()
    order = numpy.argsort(before)
    for some in (order[k : k + batch] for k in range(0, order.size, batch)):
        found = lower_batch(deck, poses[:, some], iterations)
        energies = value(sensitivity.pose_gradient(deck, found)[0])
        better = energies < before[some]
        poses[:, some[better]] = found[:, better]
        after[some[better]] = energies[better]
    return poses, after


def lower_batch(deck, poses, iterations):
    """Poses with a lower sum of energies. The minimiser sees angles as lengths of arcs."""
    scale = numpy.array([ARM, ARM, ARM, 1, 1, 1])[:, None]

    def objective(x):
        energies, slopes = sensitivity.pose_gradient(deck, (x.reshape(poses.shape) / scale).astype(poses.dtype))
        return float(energies.sum(dtype=float)), (slopes / scale).astype(float).ravel()

    start = (poses * scale).astype(float).ravel()
    found = scipy.optimize.minimize(objective, start, jac=True, method="L-BFGS-B", options={"maxiter": iterations})
    return (found.x.reshape(poses.shape) / scale).astype(poses.dtype)
