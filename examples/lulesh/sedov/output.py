"""Fields and gradients of all ranks in one HDF5 file, and a picture of a slice."""

import h5py
import numpy

PIECE = 7  # tag


def write(path, domain, fields, attributes):
    """Write fields of all ranks to one file, each piece in its place in the whole mesh. Collective.

    Parameters
    ----------
    path : file name; the first rank writes it
    fields : dataset name → (kind, array); kind "element" with shape (elements,), or "node" with (3, nodes)
    attributes : name → number or text, for the file

    Datasets have the shapes (Z, Y, X) for elements and (3, Z, Y, X) for nodes, float64. On nodes that several ranks
    share these must have the same values.
    """
    comm = domain.comm
    if comm.Get_rank() != 0:
        for _, array in fields.values():
            comm.Send(numpy.ascontiguousarray(array, dtype=float), 0, PIECE)
        return
    with h5py.File(path, "w") as file:
        file.attrs.update(attributes)
        for name, (kind, array) in fields.items():
            dataset = file.create_dataset(name, whole_shape(domain, kind), float)
            for rank in range(comm.Get_size()):
                piece = numpy.array(array, dtype=float)
                if rank:
                    comm.Recv(piece, rank, PIECE)
                place = place_of(domain, kind, rank)
                dataset[place] = piece.reshape(dataset[place].shape)


def whole_shape(domain, kind):
    edge = domain.size * domain.box.side
    return (edge,) * 3 if kind == "element" else (3, edge + 1, edge + 1, edge + 1)


def place_of(domain, kind, rank):
    """Where the box of a rank lies in a dataset."""
    side, size = domain.box.side, domain.size
    extra = 0 if kind == "element" else 1
    x, y, z = (slice(p * size, (p + 1) * size + extra) for p in (rank % side, rank // side % side, rank // side**2))
    return (z, y, x) if kind == "element" else (slice(None), z, y, x)


def plot(data, picture):
    """Draw the lowest layer (z = 0) of the energy and of each gradient in an HDF5 file that :func:`write` made.

    For nodal gradients the component in direction x is drawn. The colour scale is logarithmic on both sides of zero.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import colors
    from matplotlib import pyplot as plt

    with h5py.File(data) as file:
        layers = {name: (d[0] if d.ndim == 3 else d[0, 0]) for name, d in sorted(file.items())}
        title = f"{file.attrs['functional']} = {file.attrs['value']:.6e}"
    columns = min(2, len(layers))
    rows = -(-len(layers) // columns)
    figure, axes = plt.subplots(rows, columns, figsize=(4.2 * columns, 3.6 * rows), squeeze=False, layout="constrained")
    for ax in axes.flat[len(layers) :]:
        ax.set_axis_off()
    for ax, (name, layer) in zip(axes.flat, layers.items()):
        largest = float(numpy.abs(layer).max()) or 1.0
        norm = colors.SymLogNorm(1e-6 * largest, vmin=-largest, vmax=largest)
        image = ax.imshow(layer, origin="lower", cmap="RdBu_r", norm=norm)
        ax.set(title=name.replace("_", " of "), xlabel="x", ylabel="y")
        ticks = [sign * size * largest for sign in (-1, 1) for size in (1, 1e-2, 1e-4)] + [0]
        figure.colorbar(image, ax=ax, shrink=0.8, ticks=ticks, format="%.1e")
    figure.suptitle(title)
    figure.savefig(picture, dpi=160)
    plt.close(figure)
