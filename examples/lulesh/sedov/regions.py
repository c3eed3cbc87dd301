"""LULESH's materials: a random division of a rank's elements into regions, some more expensive than others.

The materials have the same properties. An expensive one evaluates its equation of state several times over, which
stands for a more expensive equation of state and for the load imbalance that it makes.
"""

import numpy

RAND_MAX_PLUS_1 = 2**31


def c_rand(seed):
    """The numbers that ``rand()`` of the GNU C library gives after ``srand(seed)``: an endless iterator."""
    state = [seed or 1]
    for _ in range(30):
        state.append(16807 * state[-1] % (RAND_MAX_PLUS_1 - 1))
    state += state[:3]
    for i in range(34, 344):
        state.append((state[i - 31] + state[i - 3]) % 2**32)
    recent = state[-31:]
    while True:
        recent.append((recent[0] + recent[28]) % 2**32)
        del recent[0]
        yield recent[-1] >> 1


def run_length(random):
    """How many elements in a row belong to one region: mostly few, sometimes hundreds."""
    share = next(random) % 1000
    for below, width, least in (
        (773, 15, 1),
        (937, 16, 16),
        (970, 32, 32),
        (974, 64, 64),
        (978, 128, 128),
        (981, 256, 256),
        (1000, 1537, 512),
    ):
        if share < below:
            return next(random) % width + least
    raise AssertionError


def region_elements(elements, regions, balance, rank):
    """The element numbers of each region: a list of uint32 arrays.

    Region ``i`` is drawn with weight ``(i + 1) ** balance``, and never twice in a row; ranks are rotated against each
    other.
    """
    if regions == 1:
        return [numpy.arange(elements, dtype=numpy.uint32)]
    random = c_rand(rank)
    bounds = numpy.cumsum([(i + 1) ** balance for i in range(regions)])
    number = numpy.empty(elements, int)
    last, done = None, 0
    while done < elements:
        region = last
        while region == last:
            drawn = next(random) % int(bounds[-1])
            region = (int(numpy.searchsorted(bounds, drawn, side="right")) + rank) % regions
        length = run_length(random)
        number[done : done + length] = region
        last, done = region, done + length
    return [numpy.flatnonzero(number == region).astype(numpy.uint32) for region in range(regions)]


def evaluations(region, regions, cost):
    """How many times a region evaluates its equation of state in a cycle."""
    if region < regions // 2:
        return 1
    if region < regions - (regions + 15) // 20:
        return 1 + cost
    return 10 * (1 + cost)
