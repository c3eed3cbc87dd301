"""Two hosts whose link is cut in the middle of a sweep: every rank ends, and reports why.

The hosts are network namespaces of this machine with a pair of virtual interfaces, which requires root; MPICH's
launcher reaches them by a substitute for ssh.
"""

import os
import pathlib
import shutil
import subprocess
import sys
import time

import pytest
from mpi4py import MPI
from patience import patience

import ampi

PROGRAM = """\
import os, pathlib, sys, time, traceback
import numpy, ampi, ampi.numpy as np
folder = pathlib.Path(sys.argv[1])
comm = ampi.COMM_WORLD
rank, size = comm.rank, comm.size
(folder / f"pid-{rank}").write_text(str(os.getpid()))

def pause(sweep):
    if len(sys.argv) > 2:
        (folder / f"sweeping-{rank}").touch()
        while not (folder / "cut").exists():
            time.sleep(0.01)

try:
    with ampi.Tape() as tape:
        x = tape.watch(numpy.arange(1.0, 101.0) + rank)
        y = x
        for turn in range(6):
            came = np.zeros(100)
            comm.Sendrecv(y * x, (rank + 1) % size, 0, came, (rank - 1) % size, 0)
            y = came
            if turn == 3:
                tape.append(pause)
        total = np.sum(y)
    gradient = tape.gradient(total, x)
    (folder / f"said-{rank}").write_text(repr(float(numpy.sum(gradient))))
except BaseException:
    (folder / f"said-{rank}").write_text(traceback.format_exc())
    raise
"""
SSH = """\
#!/bin/sh
# Stands in for ssh: HOST COMMAND...
while [ "${1#-}" != "$1" ]; do shift; done
host=$1
shift
case $host in
10.213.7.1) exec ip netns exec NAME-1 sh -c "$*" ;;
10.213.7.2) exec ip netns exec NAME-2 sh -c "$*" ;;
esac
exit 255
"""
TIMEOUT = 5
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def ip(*words):
    return subprocess.run(["ip", *words], capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)


@pytest.fixture
def hosts(tmp_path):
    """Two hosts; yields the prefix of their names."""
    if shutil.which("ip") is None or os.geteuid():
        pytest.skip("to make hosts takes root, and ip of iproute2")
    if not MPI.Get_library_version().startswith("MPICH"):
        pytest.skip("only with MPICH's launcher")
    name = f"ampi-{os.getpid()}"
    try:
        for words in (
            ("netns", "add", f"{name}-1"),
            ("netns", "add", f"{name}-2"),
            ("-n", f"{name}-1", "link", "add", "left", "type", "veth", "peer", "name", "right"),
            ("-n", f"{name}-1", "link", "set", "right", "netns", f"{name}-2"),
            *(("-n", f"{name}-{k}", "link", "set", link, "up") for k in (1, 2) for link in ("lo", LINKS[k])),
            *(("-n", f"{name}-{k}", "addr", "add", f"10.213.7.{k}/24", "dev", LINKS[k]) for k in (1, 2)),
        ):
            done = ip(*words)
            if done.returncode:
                pytest.skip(f"the system makes no hosts: ip {' '.join(words)}: {done.stderr.strip()}")
        (tmp_path / "ssh").write_text(SSH.replace("NAME", name))
        (tmp_path / "ssh").chmod(0o755)
        yield name
    finally:
        for k in (1, 2):
            ip("netns", "del", f"{name}-{k}")


LINKS = {1: "left", 2: "right"}


def start(name, folder, *more):
    program = folder / "ring.py"
    program.write_text(PROGRAM)
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("PMI", "HYDRA"))}
    root = pathlib.Path(ampi.__file__).parents[1]
    # Otherwise the two hosts, which are one machine, would communicate through its memory.
    environment.update(UCX_TLS="tcp,self", UCX_LOG_LEVEL="error", PYTHONPATH=str(root), AMPI_TIMEOUT=str(TIMEOUT))
    launcher = pathlib.Path(sys.executable).with_name("mpiexec")
    words = ["-launcher", "ssh", "-launcher-exec", folder / "ssh", "-hosts", "10.213.7.1,10.213.7.2", "-ppn", "2"]
    command = [launcher, *words, "-n", "4", sys.executable, program, folder, *more]
    return subprocess.Popen(
        ["ip", "netns", "exec", f"{name}-1", *map(str, command)],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=open(folder / "errors", "w"),
        start_new_session=True,
    )


def said(folder):
    return [path.read_text() for path in sorted(folder.glob("said-*"))]


def wait_for(condition, seconds, folder):
    end = time.monotonic() + patience(seconds)
    while not condition():
        assert time.monotonic() < end, ((folder / "errors").read_text()[-2000:], said(folder))
        time.sleep(0.05)


def runs(folder, rank):
    pid = int((folder / f"pid-{rank}").read_text())
    try:
        return "\nState:\tZ" not in pathlib.Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return False


def end(process, folder):
    for path in folder.glob("pid-*"):
        if runs(folder, path.name[4:]):
            os.kill(int(path.read_text()), 9)
    if process.poll() is None:
        process.kill()
    process.wait()


def test_a_ring_across_two_hosts(hosts, tmp_path):
    process = start(hosts, tmp_path)
    try:
        assert process.wait(patience(60)) == 0, (tmp_path / "errors").read_text()
    finally:
        end(process, tmp_path)
    assert len(said(tmp_path)) == 4 and all(float(text) for text in said(tmp_path))


def test_a_link_that_is_cut_in_a_sweep_ends_all_ranks(hosts, tmp_path):
    process = start(hosts, tmp_path, "pause")
    try:
        wait_for(lambda: len(list(tmp_path.glob("sweeping-*"))) == 4, 30, tmp_path)
        assert ip("-n", f"{hosts}-1", "link", "set", "left", "down").returncode == 0
        (tmp_path / "cut").touch()
        begun = time.monotonic()
        wait_for(lambda: not any(runs(tmp_path, rank) for rank in range(4)), 12 * TIMEOUT, tmp_path)
        print(f"all ranks had ended after {time.monotonic() - begun:.1f} s")
    finally:
        end(process, tmp_path)
    texts = said(tmp_path)
    print(*texts, sep="\n")
    assert texts and all("CommunicationError" in text for text in texts)  # ranks without a text were ended by others
