# Sourced by the other scripts, from the root of the checkout:
#
#     prepare MPI EXTRAS      e.g. prepare mpich mpich,test
#
# makes the virtual environment if it is missing, installs ampi into it (editable) with these extras if that has not been
# done since the metadata last changed, and puts it first on PATH. AMPI_VENV says where it lies (default: .venv);
# every MPI but MPICH has its own beside it, since each brings an `mpiexec`.

find_python() {
    # Numba's wheels follow a new Python late: one that is newer than those ampi is tested with comes last.
    for candidate in python3 python3.13 python3.12 python3.11 python3.10; do
        if "$candidate" -c 'import sys; sys.exit(not (3, 10) <= sys.version_info < (3, 14))' 2>/dev/null; then
            echo "$candidate"
            return
        fi
    done
    for candidate in python3 python; do
        if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; then
            echo "$candidate"
            return
        fi
    done
    echo "No Python 3.10 or newer on PATH." >&2
    return 1
}

fingerprint() {
    { pwd; cat setup.cfg pyproject.toml; } | cksum
}

prepare() {
    mpi=$1
    extras=$2
    venv=${AMPI_VENV:-$PWD/.venv}
    [ "$mpi" = mpich ] || venv=$venv-$mpi

    if [ ! -x "$venv/bin/python" ]; then
        python=$(find_python) || exit 1
        echo "Making $venv with $("$python" --version)" >&2
        "$python" -m venv "$venv" || {
            rm -rf "$venv"
            echo "$python cannot make a virtual environment (Debian and Ubuntu: install python3-venv)." >&2
            exit 1
        }
    fi
    stamp=$venv/.ampi-$(echo "$extras" | tr , -)
    if [ "$(cat "$stamp" 2>/dev/null)" != "$(fingerprint)" ]; then
        echo "Installing ampi[$extras] into $venv" >&2
        "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --editable ".[$extras]" || exit 1
        fingerprint >"$stamp"
    fi
    PATH=$venv/bin:$PATH
    export PATH
    unset PYTHONHOME

    # More ranks than cores, and containers where one is root.
    case $mpi in
    openmpi)
        export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
        export PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe
        export OMPI_MCA_mpi_yield_when_idle=1 OMPI_MCA_osc=^ucx
        ;;
    impi)
        export I_MPI_FABRICS=shm:ofi I_MPI_PIN=off I_MPI_THREAD_YIELD=3 I_MPI_THREAD_SLEEP=0
        ;;
    esac
}
