"""Kernel tests run on all threads, whatever examples imported by other tests have set."""

import numba
import numbas
import pytest

from ampi.kernel.runtime import files


@pytest.fixture(autouse=True)
def all_threads():
    before = numba.get_num_threads()
    numba.set_num_threads(numba.config.NUMBA_NUM_THREADS)
    yield
    numba.set_num_threads(before)


@pytest.fixture
def cache_folder(tmp_path, monkeypatch):
    """An empty cache folder for this test."""
    monkeypatch.setenv("AMPI_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(files, "_warned", set())
    files.folder.cache_clear()
    yield files.folder()
    files.folder.cache_clear()


@pytest.fixture(autouse=True, scope="session")
def numbas_answers(request):
    """Take Numba's results for kernels from a file, or write them to it with ``--regenerate``."""
    numbas.ANEW = request.config.getoption("--regenerate")
    yield
    if numbas.ANEW:
        numbas.write()
