# Sourced by the other scripts, from the root of the checkout:
#
#     prepare MPI EXTRAS      e.g. prepare mpich mpich,test
#
# makes the virtual environment if it is missing, installs ampi into it (editable) with these extras if that has not been
# done since the metadata last changed, and puts it first on PATH. Variables choose another environment:
#
#     AMPI_PYTHON=3.13        this version of Python; `newest` or `oldest` of those that are installed
#     AMPI_RELEASES=oldest    the oldest releases of the dependencies that setup.cfg allows
#     AMPI_VENV=FOLDER        where the environment is (default: .venv)
#
# Each Python, choice of releases and MPI has an environment of its own (an MPI brings an `mpiexec`).

# Newest first. Numba's wheels follow a new Python late: a newer one than these is taken only if there is no other.
PYTHONS="3.13 3.12 3.11 3.10"

# Prints an interpreter of a version: one on PATH, or one that pyenv has installed (whose shims may refuse to start it).
find_version() {
    for candidate in "python$1" python3 "${PYENV_ROOT:-$HOME/.pyenv}/versions/$1".*/bin/python; do
        if "$candidate" -c "import sys; sys.exit('%d.%d' % sys.version_info[:2] != '$1')" 2>/dev/null; then
            echo "$candidate"
            return
        fi
    done
    return 1
}

find_first() {
    for version in "$@"; do
        find_version "$version" && return
    done
    return 1
}

find_python() {
    # shellcheck disable=SC2046,SC2086
    case ${AMPI_PYTHON-} in
    "") ;;
    newest) find_first $PYTHONS && return ;;
    oldest) find_first $(printf '%s\n' $PYTHONS | sort -t . -k 2 -n) && return ;;
    *)
        find_version "$AMPI_PYTHON" && return
        echo "No Python $AMPI_PYTHON on PATH or in pyenv." >&2
        return 1
        ;;
    esac
    if python3 -c 'import sys; sys.exit(not (3, 10) <= sys.version_info < (3, 14))' 2>/dev/null; then
        echo python3
        return
    fi
    # shellcheck disable=SC2086
    find_first $PYTHONS && return
    for candidate in python3 python; do
        if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; then
            echo "$candidate"
            return
        fi
    done
    echo "No Python 3.10 or newer on PATH." >&2
    return 1
}

# What pip may install: the lower bounds of setup.cfg, or anything that these allow.
constraints() {
    case ${AMPI_RELEASES-} in
    "") ;;
    oldest) sed -n 's/^ *\([A-Za-z0-9_-]*\)>=\([0-9.]*\).*/\1==\2/p' setup.cfg ;;
    *)
        echo "AMPI_RELEASES is 'oldest' or not set." >&2
        return 2
        ;;
    esac
}

fingerprint() {
    { pwd; cat setup.cfg pyproject.toml; } | cksum
}

prepare() {
    mpi=$1
    extras=$2
    venv=${AMPI_VENV:-$PWD/.venv}
    [ -z "${AMPI_PYTHON-}" ] || venv=$venv-$AMPI_PYTHON
    [ -z "${AMPI_RELEASES-}" ] || venv=$venv-$AMPI_RELEASES
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
        constraints >"$venv/constraints.txt" || exit
        "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --constraint "$venv/constraints.txt" \
            --editable ".[$extras]" || exit 1
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
