"""Many ranks on one machine that share the memory of imported modules, as forks of one process.

mpiexec starts a small program for each rank, which passes environment, folder and descriptors to our server. The server
forks, and the fork is the rank. Pages that no rank writes exist once.
"""

import atexit
import contextlib
import ctypes
import fcntl
import gc
import importlib
import importlib.machinery
import importlib.util
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import traceback
import types

LARGEST = 1 << 18
"""Bytes of the message to a rank, mostly its environment."""


# ----------------------------------------------------------------------------------------------- what mpiexec starts


def stand_in(address, function, *arguments):
    """Ask the server to fork a rank, and wait for its end, with few imports and without Python while waiting."""
    server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    server.connect(address)
    manager = int(os.environ["PMI_FD"])
    told = {"environment": dict(os.environ), "folder": os.getcwd(), "function": function, "arguments": arguments}
    told["ranks"] = int(os.environ["PMI_SIZE"])
    socket.send_fds(server, [json.dumps(told).encode()], [0, 1, 2, manager])
    os.set_inheritable(manager, False)
    os.dup2(server.fileno(), 9)
    os.execv("/bin/sh", ["sh", "-c", "read status <&9; read end <&9; exit ${status:-1}"])  # its end: it closes


# ------------------------------------------------------------------------------------------------------- the server


def serve(address, *imported):
    """Import modules, then fork as many ranks as mpiexec has started as soon as all of them have asked.

    Modules of ampi that do not need MPI are imported; the code of the others is loaded, and each rank runs it.
    """
    import mpi4py

    mpi4py.rc.initialize = False  # MPI begins in the forks
    for name in imported:
        if not name.startswith("ampi."):
            importlib.import_module(name)
    codes = _codes_of("ampi")
    _import_alone(name for name in imported if name.startswith("ampi."))
    compiled = importlib.machinery.SourceFileLoader.get_code
    importlib.machinery.SourceFileLoader.get_code = lambda self, name: codes.get(name) or compiled(self, name)
    gc.collect()
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listening.bind(address)
    listening.listen(1024)
    print("ready", flush=True)
    while True:
        asking = [_asked(listening)]
        asking += [_asked(listening) for _ in range(1, asking[0][1]["ranks"])]
        gate, keeper = os.pipe()
        for rank in asking:
            if not os.fork():
                os.close(keeper)
                listening.close()
                _let_go(other for other in asking if other is not rank)
                os.read(gate, 1)  # until all exist: ranks that wait in MPI take the cores from those being started
                _be_a_rank(*rank)
        os.close(gate)
        os.close(keeper)
        _let_go(asking)


def _let_go(asked):
    """Close what belongs to other ranks."""
    for connection, _, descriptors in asked:
        for descriptor in (connection.detach(), *descriptors):
            os.close(descriptor)


def _asked(listening):
    """A connection with a stand-in, its message, and the descriptors that it passes."""
    connection, _ = listening.accept()
    message, descriptors, _, _ = socket.recv_fds(connection, LARGEST, 4)
    return connection, json.loads(message), descriptors


def _codes_of(package):
    """The code of all modules of a package, without importing it."""
    folder = pathlib.Path(importlib.util.find_spec(package).origin).parent
    found = {}
    for path in folder.rglob("*.py"):
        parts = (package, *path.relative_to(folder).with_suffix("").parts)
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        found[name] = importlib.machinery.SourceFileLoader(name, str(path)).get_code(name)
    return found


class _Refused:
    """A finder that refuses modules of ``ampi.mpi``, which would start MPI."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        """Refuse them."""
        if name == "ampi.mpi" or name.startswith("ampi.mpi."):
            raise ImportError(name)


def _import_alone(names):
    """Import the modules of ampi that do not need MPI, but not ampi itself: ranks find them when they import it."""
    bare = types.ModuleType("ampi")
    bare.__path__ = [str(pathlib.Path(importlib.util.find_spec("ampi").origin).parent)]
    sys.modules["ampi"] = bare
    sys.meta_path.insert(0, _Refused)
    for name in names:
        with contextlib.suppress(ImportError, AttributeError):
            importlib.import_module(name)
    sys.meta_path.remove(_Refused)
    del sys.modules["ampi"]


def _be_a_rank(asking, told, descriptors):
    """Run a function as a process started by mpiexec would, and exit."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    fcntl.fcntl(asking, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(asking, fcntl.F_SETFL, os.O_ASYNC)  # SIGIO ends this process when its stand-in is killed
    for number, descriptor in enumerate(descriptors[:3]):
        os.dup2(descriptor, number)
    os.environ.clear()
    os.environ.update(told["environment"], PMI_FD=str(descriptors[3]))
    os.chdir(told["folder"])
    status = 1
    try:
        from mpi4py import MPI

        MPI.Init_thread(MPI.THREAD_MULTIPLE)
        atexit.register(MPI.Finalize)  # called last
        module, _, name = told["function"].partition(":")
        getattr(importlib.import_module(module), name)(*told["arguments"])
        status = 0
    except BaseException:
        traceback.print_exc()
    fcntl.fcntl(asking, fcntl.F_SETFL, 0)
    with contextlib.suppress(OSError):
        asking.send(f"{status}\n".encode())
    asking.detach()  # closed when the process has ended
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    # MPICH notifies its launcher when the process ends. Python's own exit would touch all objects, and each rank would
    # get a copy of their pages.
    ctypes.CDLL(None).exit(status)


# ------------------------------------------------------------------------------------------------ what others call


@contextlib.contextmanager
def server(*imported):
    """Start a server that has imported these modules; yields the beginning of the command for mpiexec.

    ``module:function`` and its arguments as texts are to be appended.
    """
    with tempfile.TemporaryDirectory() as folder:
        address = os.path.join(folder, "server")
        environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}  # threads are not there after a fork
        command = [sys.executable, *(["-OO"] if sys.flags.optimize > 1 else []), __file__, "serve", address, *imported]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
        try:
            if process.stdout.readline() != "ready\n":
                raise RuntimeError("the server of ranks did not start")
            yield [sys.executable, "-I", "-S", __file__, "stand_in", address]
        finally:
            process.kill()
            process.wait()
            process.stdout.close()


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
