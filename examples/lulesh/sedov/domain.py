"""One rank's part of the mesh, and the state that lives on it."""

import dataclasses
import itertools

import numpy

from . import geometry, kernels
from .backend import constant, np
from .blocks import blocks, layers
from .exchange import Box, FaceGhosts, NodeCopy, NodeSum
from .regions import evaluations, region_elements

EDGE_LENGTH = 1.125  # of the whole cube
GAMMA_MINUS_1 = 2.0 / 3.0  # of the gas
BLAST_ENERGY = 3.948746e7  # in the element at the origin, of a mesh with 45 elements along an edge


@dataclasses.dataclass
class Material:
    """The elements of one region, and how often its equation of state is evaluated beyond the one time that counts."""

    element: numpy.ndarray
    extra_evaluations: int
    result: numpy.ndarray


class Domain:
    """Mesh, state and exchanges of one rank. Collective: it adds up the nodal masses.

    Parameters
    ----------
    comm : communicator with a cubic number of ranks
    size : elements along an edge of this rank's box
    regions, balance, cost : see :mod:`regions`
    tasks : threads for the tasks of a cycle (0: no tasks)

    Attributes
    ----------
    All arrays are float64 but for the index tables, which are uint32.

    Constant: ``corner`` (elements, 8) nodes of an element; ``node_corner`` (nodes, 8) columns of ``force_at_corner``
    that meet at a node, filled up with columns that are always 0 (beside those of the elements of each block);
    ``neighbor`` (elements, 6), see
    :func:`kernels.artificial_viscosity`; ``gamma_minus_1`` (1,) of the gas; ``reference_volume``
    (elements,), which is the mass as well, since the density is 1; ``mobility`` (3, nodes), 1/mass or 0 across a plane
    of symmetry.

    State, which a cycle takes from one time to the next: ``x``, ``v`` (3, nodes) positions and velocities; ``energy``,
    ``pressure``, ``viscosity``, ``sound_speed``, ``relative_volume`` (elements,); ``time``, ``dt``, ``step_limit``
    (1,). The volumes and masses of the undisturbed mesh are constants: moving ``x`` later does not change them.

    Within a cycle, each written before it is read: ``force_at_corner`` (3, 8 nodes), ``force`` (3, nodes);
    ``new_volume``, ``volume_change``, ``length``, ``strain_rate``, ``linear``, ``quadratic`` (elements,);
    ``velocity_gradient`` (3, elements + ghosts + 1), ``extent`` (3, elements);
    ``limits`` (blocks, 2); ``common_limit`` (1,).

    With tasks ``blocks`` are parts of it, under the same names. Without, it is its own block: ``near_x``, ``near_v``,
    ``near_force_at_corner``, ``own_gradient``.
    """

    def __init__(self, comm, size, regions=11, balance=1, cost=1, tasks=0):
        self.comm = comm
        self.size = size
        self.box = Box(comm.Get_rank(), comm.Get_size())
        self.edge = EDGE_LENGTH / (self.box.side * size)
        self.elements = size**3
        self.nodes = (size + 1) ** 3
        self.cycle = 0
        self.tasks = tasks
        self.ends = layers(size, min(tasks, size) or 1)
        numbers = numpy.arange(self.elements).reshape(size, size, size)
        nodes = numpy.arange(self.nodes).reshape(size + 1, size + 1, size + 1)
        self._connect(numbers, nodes)
        self._allocate()
        self._place_nodes()

        self.force_sum = NodeSum(comm, self.box, nodes, 3)
        self.motion_copy = NodeCopy(comm, self.box, nodes)
        self.gradient_ghosts = FaceGhosts(comm, self.box, numbers, self.velocity_gradient, self.ghosts)
        geometry.reference_volumes(self.x, self.corner, self.reference_volume)
        self._weigh_nodes(nodes)
        self._light_the_fuse()
        self.blocks = blocks(self) if tasks else []
        self._divide(regions, balance, cost)

    near_x = property(lambda self: self.x)
    near_v = property(lambda self: self.v)
    near_force_at_corner = property(lambda self: self.force_at_corner)
    own_gradient = property(lambda self: self.velocity_gradient)

    @property
    def nbytes(self):
        """Bytes of the arrays of mesh and state on this rank."""
        return sum(a.nbytes for a in vars(self).values() if isinstance(a, numpy.ndarray))

    def _connect(self, numbers, nodes):
        around = ((0, 0, 0), (0, 0, 1), (0, 1, 1), (0, 1, 0), (1, 0, 0), (1, 0, 1), (1, 1, 1), (1, 1, 0))  # z, y, x
        s = self.size
        corner = [nodes[z : z + s, y : y + s, x : x + s].ravel() for z, y, x in around]
        self.corner = numpy.stack(corner, axis=1).astype(numpy.uint32)

        # No column occurs twice, those of zeros included: the adjoint of a sum over corners may then add on threads.
        layer, plane = s * s, (s + 1) * (s + 1)
        missing = numpy.ones((self.nodes, 8), bool)
        for k in range(8):
            missing[self.corner[:, k], k] = False
        planes = [slice(a * plane, (b + (b == s)) * plane) for a, b in itertools.pairwise(self.ends)]  # of each block
        zeros = [int(missing[nodes].sum()) for nodes in planes]
        self.node_corner = numpy.empty((self.nodes, 8), numpy.uint32)
        self.columns = []  # of each block: those of its elements
        start = 0
        for a, b, nodes, count in zip(self.ends, self.ends[1:], planes, zeros):
            first = start + count if a else start  # its zeros come before, those of the first block after
            end = first + 8 * layer * (b - a)
            columns = numpy.arange(first, end).reshape(-1, 8)
            for k in range(8):
                self.node_corner[self.corner[a * layer : b * layer, k], k] = columns[:, k]
            zero = start if a else end
            self.node_corner[nodes][missing[nodes]] = numpy.arange(zero, zero + count)
            self.columns.append(slice(first, end))
            start += count + end - first

        self.ghosts = {
            -1: slice(self.elements, self.elements + layer),
            1: slice(self.elements + layer, self.elements + 2 * layer),
        }
        nothing = self.elements + 2 * layer
        self.neighbor = numpy.empty((self.elements, 6), numpy.uint32)
        for direction in range(3):
            along = numpy.moveaxis(numbers, 2 - direction, 0)
            for sign in (-1, 1):
                column = 2 * direction + (sign > 0)
                face = along[0 if sign < 0 else -1]
                self.neighbor[along, column] = numpy.roll(along, -sign, axis=0)
                if self.box.has_neighbor(direction, sign):
                    ghost = self.ghosts[sign]
                    self.neighbor[face, column] = numpy.arange(ghost.start, ghost.stop).reshape(face.shape)
                else:  # symmetry at the lower end, a free surface at the upper one
                    self.neighbor[face, column] = face if sign < 0 else nothing
        for table in (self.corner, self.node_corner, self.neighbor):
            constant(table)

    def _allocate(self):
        elements, nodes = self.elements, self.nodes
        self.x, self.v = np.zeros((3, nodes)), np.zeros((3, nodes))
        self.energy, self.pressure, self.viscosity = (np.zeros(elements) for _ in range(3))
        self.sound_speed, self.relative_volume = np.zeros(elements), np.ones(elements)
        self.time, self.dt, self.step_limit = np.zeros(1), np.zeros(1), np.zeros(1)
        self.reference_volume, self.mobility = np.zeros(elements), np.zeros((3, nodes))
        self.force_at_corner, self.force = np.zeros((3, 8 * nodes)), np.zeros((3, nodes))
        self.new_volume, self.volume_change, self.length = np.zeros(elements), np.zeros(elements), np.zeros(elements)
        self.strain_rate, self.linear, self.quadratic = np.zeros(elements), np.zeros(elements), np.zeros(elements)
        self.velocity_gradient = np.zeros((3, self.ghosts[1].stop + 1))
        self.extent = np.zeros((3, elements))
        self.limits, self.common_limit = np.zeros((max(min(self.tasks, self.size), 1), 2)), np.zeros(1)
        self.gamma_minus_1 = np.full(1, GAMMA_MINUS_1)

    def _place_nodes(self):
        s = self.size
        ticks = [EDGE_LENGTH * (place * s + numpy.arange(s + 1)) / (self.box.side * s) for place in self.box.place]
        z, y, x = numpy.meshgrid(*reversed(ticks), indexing="ij")
        self.x[0], self.x[1], self.x[2] = x.ravel(), y.ravel(), z.ravel()

    def _weigh_nodes(self, nodes):
        share = np.zeros((1, 8 * self.nodes))
        for columns, a, b in zip(self.columns, self.ends, self.ends[1:]):
            volume = self.reference_volume[a * self.size**2 : b * self.size**2]
            share[0, columns] = numpy.repeat(volume / 8.0, 8)
        mass = np.zeros((1, self.nodes))
        total = NodeSum(self.comm, self.box, nodes, 1)
        total.post()
        kernels.sum_corners(share, self.node_corner, mass)
        total.send(mass)
        total.finish(mass)
        self.mobility[:] = 1.0 / mass
        self.owned_mass = np.array(mass[0])
        self.owned_mass[self.motion_copy.copied] = 0.0
        for direction in range(3):
            if not self.box.has_neighbor(direction, -1):
                self.mobility[direction, numpy.moveaxis(nodes, 2 - direction, 0)[0].ravel()] = 0.0

    def _light_the_fuse(self):
        scale = self.size * self.box.side / 45.0
        blast = BLAST_ENERGY * scale**3
        if self.box.place == (0, 0, 0):
            self.energy[0] = blast
        self.dt[0] = 0.5 * numpy.cbrt(self.reference_volume[0]) / numpy.sqrt(2.0 * blast)
        self.step_limit[0] = self.dt[0]

    def _divide(self, regions, balance, cost):
        of_regions = region_elements(self.elements, regions, balance, self.comm.Get_rank())
        for block in self.blocks or [self]:
            block.materials = []
            first, end = (block.elements.start, block.elements.stop) if self.blocks else (0, self.elements)
            for region, everywhere in enumerate(of_regions):
                element = everywhere[(everywhere >= first) & (everywhere < end)] - numpy.uint32(first)
                extra = evaluations(region, regions, cost) - 1
                if extra and len(element):
                    block.materials.append(Material(constant(element), extra, np.empty((3, len(element)))))
