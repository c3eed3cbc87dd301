"""Random programs that make sparse SciPy matrices, compute with them, and reduce them to results.

A program is a function of one array that draws all choices from the same seed at each call, so that it can run on
ampi's arrays and on NumPy's.  Matrices have duplicates, empty rows, and zero entries whose derivative is not zero; they
have all formats, are real or complex, arrays or matrices in SciPy's sense, and some are constant.
"""

import warnings

import numpy
import scipy.sparse as ss
import scipy.sparse.linalg as sl

import ampi.numpy

FORMATS = ["csr", "csc", "coo", "dia", "bsr"]
N = 7
LEAVES = "coo coo csr csc compressed dia diags number spdiags dense blocks constant".split()
STEPS = (
    "format transpose negative times divided power function conj triangle item copy reshape add add subtract multiply "
    "dense row product left stack block kron structure set diagonal scaling real cast join itself eye duplicates"
).split()
ENDS = "array array dense times left sum mean diagonal norm find solve element several".split()


class Program:
    def __init__(self, seed):
        self.seed = seed
        rng = numpy.random.default_rng(seed)
        self.complex = rng.random() < 0.3
        self.kind = str(rng.choice(["array", "matrix"]))
        self.start = rng.uniform(0.5, 1.5, N) + (1j * rng.uniform(0.5, 1.5, N) if self.complex else 0)
        self.text = []

    def __call__(self, x):
        self.np = numpy if type(x) is numpy.ndarray else ampi.numpy
        self.rng = numpy.random.default_rng([self.seed, 1])
        self.x = x
        self.text = []
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ss.SparseEfficiencyWarning)
            a = self.leaf()
            for _ in range(self.rng.integers(1, 6)):
                a = self.step(a)
            found = self.end(a)
        found = found if isinstance(found, tuple) else (found,)
        if self.complex:  # SciPy's results for empty matrices are real
            found = tuple([y * (1 + 0j) for y in found])
        return (*found, x * 1.0)

    def pick(self, *names):
        found = str(self.rng.choice(names))
        self.text.append(found)
        return found

    # -------------------------------------------------------------------------------------------------------- numbers

    def values(self, n):
        """Active values, some of which are zero at this x but depend on it."""
        np = self.np
        picks = self.rng.integers(0, N, n)
        found = self.x[picks] * self.rng.uniform(0.5, 1.5, n)
        if n and self.rng.random() < 0.4:
            found = found - self.start[picks] * self.rng.uniform(0.5, 1.5, n) * 0.0
            zero = self.rng.random(n) < 0.3
            found = np.where(zero, self.x[picks] - self.start[picks], found)
        return found

    def constant(self, shape):
        found = self.rng.normal(size=shape)
        return found + 1j * self.rng.normal(size=shape) if self.complex and self.rng.random() < 0.5 else found

    def number(self):
        return self.x[self.rng.integers(N)] if self.rng.random() < 0.5 else float(self.rng.uniform(0.5, 1.5))

    # ------------------------------------------------------------------------------------------------------- matrices

    def cls(self, format):
        return getattr(ss, f"{format}_{self.kind}")

    def leaf(self, shape=None):
        np = self.np
        n, m = shape or (int(self.rng.integers(1, 5)), int(self.rng.integers(1, 5)))
        how = self.pick(*LEAVES)
        count = int(self.rng.integers(0, 2 * max(n, m) + 1))
        i, j = self.rng.integers(0, n, count), self.rng.integers(0, m, count)
        if how == "coo":
            return self.cls("coo")((self.values(count), (i, j)), shape=(n, m))
        if how in ("csr", "csc"):
            return self.cls(how)((self.values(count), (i, j)), shape=(n, m))
        if how == "compressed":
            ends = np.concatenate([[0], np.sort(self.rng.integers(0, count + 1, n - 1)), [count]])
            return self.cls("csr")((self.values(count), j, ends), shape=(n, m))
        if how == "dia":
            k = np.unique(self.rng.integers(-n + 1, m, 2))
            return self.cls("dia")((self.values(len(k) * m).reshape(len(k), m), k), shape=(n, m))
        if how in ("diags", "number"):
            k = [int(x) for x in np.unique(self.rng.integers(-n + 1, m, 2))]
            length = lambda k: min(n + min(k, 0), m - max(k, 0))
            given = [self.number() if how == "number" else self.values(length(x)) for x in k]
            format = str(self.rng.choice(["csr", "dia", "csc"]))
            if self.kind == "array":
                return ss.diags_array(given, offsets=k, shape=(n, m), format=format)
            return ss.diags(given, k, shape=(n, m), format=format)
        if how == "spdiags":
            return self.cls("coo")(ss.spdiags(self.values(2 * m).reshape(2, m), [0, 1], n, m))
        if how == "dense":
            return self.cls(str(self.rng.choice(FORMATS)))(self.values(n * m).reshape(n, m))
        if how == "blocks":
            ends = np.arange(n + 1)
            return self.cls("bsr")((self.values(n * m).reshape(n, 1, m), np.zeros(n, int), ends), shape=(n, m))
        format = str(self.rng.choice([*FORMATS, "lil", "dok"]))
        return self.cls(format)(self.constant((n, m)) * (self.rng.random((n, m)) < 0.5))

    def indexed(self, a):
        return a if a.format in ("csr", "csc") else a.tocsr()

    def step(self, a):
        np = self.np
        n, m = a.shape
        rng = self.rng
        how = self.pick(*STEPS)
        if how == "format":
            return a.asformat(str(rng.choice(FORMATS)))
        if how == "transpose":
            return a.T
        if how == "negative":
            return -a
        if how == "times":
            return a * self.number() if rng.random() < 0.5 else self.number() * a
        if how == "divided":
            return a / self.number()
        if how == "power":
            return a.power(int(rng.integers(2, 4)))
        if how == "function":
            a = a if a.format in FORMATS else a.tocsr()
            names = ["arctan", "arcsinh"] if self.complex else ["sin", "tanh", "expm1"]  # which do not grow too fast
            return getattr(a, str(rng.choice(names)))()
        if how == "conj":
            return a.conj()
        if how == "triangle":
            return getattr(ss, str(rng.choice(["triu", "tril"])))(a, int(rng.integers(-1, 2)))
        if how == "item":
            a = self.indexed(a)
            k = rng.integers(0, n, 3)
            parts = [
                a[int(rng.integers(n)) :],
                a[:, : int(rng.integers(1, m + 1))],
                a[k],
                a[k][:, rng.integers(0, m, 2)],
            ]
            return parts[int(rng.integers(4))]
        if how == "copy":
            return a.copy()
        if how == "reshape":
            return a.reshape((m, n))
        if how in ("add", "subtract"):
            b = self.leaf((n, m))
            return a + b if how == "add" else b - a
        if how == "duplicates":
            b = self.leaf((n, m)).tocoo()
            twice = np.concatenate([b.data, b.data]), (np.tile(b.row, 2), np.tile(b.col, 2))
            return self.cls("coo")(twice, shape=(n, m)) + a
        if how == "itself":
            return [lambda: a - a, lambda: a + a.copy(), lambda: a.multiply(a), lambda: a @ a.T][int(rng.integers(4))]()
        if how == "eye":
            e = ss.eye_array(n, m) if self.kind == "array" else ss.eye(n, m)
            return e - self.number() * a
        if how == "multiply":
            return a.multiply(self.leaf((n, m)))
        if how == "dense":
            b = self.values(n * m).reshape(n, m) if rng.random() < 0.5 else self.constant((n, m))
            return self.cls("coo")(a.multiply(b))
        if how == "row":
            shape = [(m,), (1, m), (n, 1)][int(rng.integers(3))]
            if rng.random() < 0.3 and len(shape) == 2:
                return a.multiply(self.leaf(shape))
            return a.multiply(self.values(int(np.prod(shape))).reshape(shape))
        if how == "product":
            return a @ self.leaf((m, int(rng.integers(1, 5))))
        if how == "left":
            return self.leaf((int(rng.integers(1, 5)), n)) @ a
        if how == "stack":
            if rng.random() < 0.5:
                return ss.hstack([a, self.leaf((n, 2))], format=str(rng.choice(["csr", "coo", "csc"])))
            return ss.vstack([self.leaf((2, m)), a])
        if how == "block":
            make = ss.block_array if self.kind == "array" else ss.bmat
            return make([[a, None], [self.leaf((2, m)), self.leaf((2, 2))]], format="csr")
        if how == "join":
            return ss.block_diag([a, self.leaf((1, 2)), self.values(2).reshape(1, 2)])
        if how == "kron":
            found = ss.kron(self.leaf((2, 1)), a, format=str(rng.choice(["csr", "coo", "bsr"])))
            return (
                found.astype(complex) if self.complex or a.dtype.kind == "c" else found
            )  # SciPy's result for empty matrices is real
        if how == "structure":
            a = a.copy() if a.format in FORMATS else a.tocsr()
            for name in ("sum_duplicates", "sort_indices", "eliminate_zeros"):
                if hasattr(a, name):
                    getattr(a, name)()
            return a
        if how in ("set", "diagonal") and self.complex and a.dtype.kind != "c":
            return a
        if how == "set":
            a = self.indexed(a).copy()
            a[int(rng.integers(n)), int(rng.integers(m))] = self.number()
            if rng.random() < 0.5:
                a[int(rng.integers(n)), :] = self.values(m)
            return a
        if how == "diagonal":
            a = self.indexed(a).copy()
            a.setdiag(self.number() if rng.random() < 0.5 else self.values(min(n, m)))
            return a
        if how == "scaling":
            a = a.copy()
            k = self.number()
            if not self.complex or a.dtype.kind == "c":
                a *= k
                a /= float(rng.uniform(1, 2))
            return a
        if how == "real":
            return a.real + a.imag
        return (a if a.format in FORMATS else a.tocsr()).astype(complex)

    # -------------------------------------------------------------------------------------------------------- results

    def end(self, a):
        np = self.np
        n, m = a.shape
        how = self.pick(*ENDS)
        if how == "array":
            return a.toarray()
        if how == "dense":
            return np.asarray(a.todense())
        if how == "times":
            return a @ self.values(m)
        if how == "left":
            return self.values(2 * n).reshape(2, n) @ a
        if how in ("sum", "mean"):
            axis = [None, 0, 1, -1][int(self.rng.integers(4))]
            return np.asarray(getattr(a, how)(axis=axis))
        if how == "diagonal":
            return a.diagonal(int(self.rng.integers(-1, 2))), np.asarray(a.trace())
        if how == "norm":
            return np.asarray(sl.norm(a + self.cls("csr")(np.ones((n, m)))))
        if how == "find":
            return np.asarray((ss.find(a)[2] ** 2).sum())
        if how == "element":
            a = self.indexed(a)
            return np.asarray(a[int(self.rng.integers(n)), int(self.rng.integers(m))])
        if how == "several":
            return a @ self.values(2 * m).reshape(m, 2) + self.constant((n, 2))
        e = ss.identity(n) if self.kind == "matrix" else ss.eye_array(n)
        b = (a @ a.conj().T + 2.0 * e).tocsc()
        v = self.values(n)
        solve = self.pick("spsolve", "splu", "factorized")
        if v.dtype != b.dtype:
            solve = "spsolve"
        if solve == "spsolve":
            return sl.spsolve(b, v)
        return sl.splu(b).solve(v, str(self.rng.choice(list("NTH")))) if solve == "splu" else sl.factorized(b)(v)
