"""``python -m ampi``: the versions that matter in a bug report, and where to go from here."""

import importlib.metadata
import platform
import textwrap


def main():
    """Print what ampi, mpi4py, the MPI library and Numba are on this machine."""
    from mpi4py import MPI

    if MPI.COMM_WORLD.Get_rank() == 0:
        library = " ".join(MPI.Get_library_version().splitlines()[0].strip("\0").split())
        versions = ", ".join(f"{name} {version(name)}" for name in ("mpi4py", "numpy", "numba"))
        print(
            textwrap.dedent(f"""\
                ampi {version("ampi")}: gradients of Python MPI programs
                Python {platform.python_version()}, {versions}
                {library} (MPI {MPI.VERSION}.{MPI.SUBVERSION}), {MPI.COMM_WORLD.Get_size()} rank(s)
                mpiexec -n N python program.py               a program that imports ampi
                mpiexec -n N python -m ampi.run program.py   a program written against mpi4py alone""")
        )


def version(package):
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "(not installed)"


if __name__ == "__main__":
    main()
