"""A rank's mesh in blocks, each computed by a task, and the graph of the tasks of a cycle.

A block is a slab of layers of elements with the planes of nodes below them; the last one has the plane on top as well.
So an element meets nodes of its own block and of the next one, and what a task waits for are the tasks of these blocks.
"""

import functools

import numba
import numpy

from .backend import ThreadPoolExecutor, constant

OF_ELEMENTS = (
    "reference_volume relative_volume new_volume volume_change length strain_rate linear quadratic energy pressure "
    "viscosity sound_speed neighbor"
).split()
OF_NODES = "force mobility x v".split()  # one row per direction


class Block:
    """A part of a :class:`Domain`, under the names that the arrays have there.

    Parameters: the domain, the number of the block.

    Attributes: views of the domain's arrays; ``elements`` (slice); ``near_x``, ``near_v`` (3, nodes of its elements),
    to which the numbers in ``corner`` belong; ``near_force_at_corner`` (3, corners of the elements at its nodes, and
    zeros), to which those in ``node_corner`` belong.
    """

    def __init__(self, domain, number):
        begin, end = domain.ends[number : number + 2]
        layer, plane = domain.size**2, (domain.size + 1) ** 2
        elements = self.elements = slice(begin * layer, end * layer)
        nodes = slice(begin * plane, (end + (end == domain.size)) * plane)
        near = slice(begin * plane, (end + 1) * plane)
        for name in OF_ELEMENTS:
            setattr(self, name, getattr(domain, name)[elements])
        for name in OF_NODES:
            setattr(self, name, getattr(domain, name)[:, nodes])
        self.near_x, self.near_v = domain.x[:, near], domain.v[:, near]
        self.corner = constant(domain.corner[elements] - numpy.uint32(near.start))
        columns = domain.columns[number]
        below = domain.columns[number - 1].stop - 8 * layer if number else 0  # the layer below its own ones
        above = columns.stop if number else domain.columns[1].start if len(domain.columns) > 1 else None
        self.force_at_corner = domain.force_at_corner[:, columns]
        self.near_force_at_corner = domain.force_at_corner[:, below:above]
        self.node_corner = constant(domain.node_corner[nodes] - numpy.uint32(below))
        self.own_gradient, self.extent = domain.velocity_gradient[:, elements], domain.extent[:, elements]
        self.limits = domain.limits[number : number + 1]


def layers(size, count):
    """Where so many blocks begin and end, as layers of elements; they have about the same size."""
    return [int(n) for n in numpy.linspace(0, size, count + 1).round()]


def blocks(domain):
    """The domain in blocks."""
    return [Block(domain, k) for k in range(len(domain.ends) - 1)]


@functools.cache
def pool(tasks, threads):
    """Threads for tasks, the kernels of which compute on so many threads each."""
    return ThreadPoolExecutor(tasks, initializer=numba.set_num_threads, initargs=(threads,))


ALL, OWN, BELOW, NEXT = (None, None), (0, 0), (-1, 0), (0, 1)  # blocks for whose tasks a task waits: from, to


class Tasks:
    """What a domain's cycle computes, block by block: at once, or in tasks of which some wait for others."""

    def __init__(self, domain):
        self.domain, self.blocks = domain, domain.blocks or [domain]
        self.pool = pool(domain.tasks, numba.get_num_threads()) if domain.tasks else None

    @property
    def has_ranks_beside(self):
        return bool(self.domain.box.neighbors)

    def each(self, work, after=(), which=ALL):
        """Call ``work(domain, block)`` for each block; returns what :meth:`wait` waits for."""
        if self.pool is None:
            work(self.domain, self.domain)
            return []
        first, last = which
        found = []
        for k, block in enumerate(self.blocks):
            before = after if first is None else after[max(k + first, 0) : k + last + 1]
            found.append(self.pool.submit(call, work, self.domain, block, before))
        return found

    def exchange(self, after, *steps):
        """Do the steps of an exchange, as soon as the tasks whose results it sends have ended."""
        if self.pool is None or self.has_ranks_beside:
            self.wait(after)
            for step, *arguments in steps:
                step(*arguments)

    @staticmethod
    def wait(tasks):
        """Until they have ended; raises their errors."""
        for task in tasks:
            task.result()


def call(work, domain, block, before):
    for task in before:
        task.result()
    work(domain, block)
