# ruff: noqa: B007 (loops as their authors write them)
"""Loop programs in the style of textbooks, courses and small codes: functions with their arguments.

`tests/programs/test_loops_of_others.py` runs each with compiled loops and without; `simulations_of_others` has more.
"""

import math

import numpy as np


# ------------------------------------------------------------------------------------- linear algebra, as in textbooks
def ludcmp(a, n, indx):
    """LU decomposition after Crout, with implicit pivoting, and the determinant."""
    TINY = 1.0e-20
    vv = np.zeros(n)
    d = 1.0
    for i in range(n):
        big = 0.0
        for j in range(n):
            temp = abs(a[i, j])
            if temp > big:
                big = temp
        if big == 0.0:
            raise ValueError("Singular matrix in routine ludcmp")
        vv[i] = 1.0 / big
    for j in range(n):
        for i in range(j):
            s = a[i, j]
            for k in range(i):
                s -= a[i, k] * a[k, j]
            a[i, j] = s
        big = 0.0
        imax = j
        for i in range(j, n):
            s = a[i, j]
            for k in range(j):
                s -= a[i, k] * a[k, j]
            a[i, j] = s
            dum = vv[i] * abs(s)
            if dum >= big:
                big = dum
                imax = i
        if j != imax:
            for k in range(n):
                dum = a[imax, k]
                a[imax, k] = a[j, k]
                a[j, k] = dum
            d = -d
            vv[imax] = vv[j]
        indx[j] = imax
        if a[j, j] == 0.0:
            a[j, j] = TINY
        if j != n - 1:
            dum = 1.0 / a[j, j]
            for i in range(j + 1, n):
                a[i, j] *= dum
    for j in range(n):
        d *= a[j, j]
    return d


def tridag(a, b, c, r, u):
    """The solution of a tridiagonal system (Thomas)."""
    n = len(b)
    gam = np.zeros(n)
    bet = b[0]
    u[0] = r[0] / bet
    for j in range(1, n):
        gam[j] = c[j - 1] / bet
        bet = b[j] - a[j] * gam[j]
        u[j] = (r[j] - a[j] * u[j - 1]) / bet
    for j in range(n - 2, -1, -1):
        u[j] -= gam[j + 1] * u[j + 1]
    return u[0] + 2.0 * u[n // 2]


def cholesky(A, L):
    n = A.shape[0]
    for i in range(n):
        for j in range(i + 1):
            s = A[i][j]
            for k in range(j):
                s = s - L[i][k] * L[j][k]
            if i == j:
                L[i][j] = math.sqrt(s)
            else:
                L[i][j] = s / L[j][j]
    logdet = 0.0
    for i in range(n):
        logdet += 2 * math.log(L[i][i])
    return logdet


def conjugate_gradient(A, b, x, maxit, tol):
    n = b.shape[0]
    r = np.zeros(n)
    p = np.zeros(n)
    Ap = np.zeros(n)
    rsold = 0.0
    for i in range(n):
        r[i] = b[i]
        p[i] = b[i]
        rsold += b[i] * b[i]
    for it in range(maxit):
        pAp = 0.0
        for i in range(n):
            acc = 0.0
            for j in range(n):
                acc += A[i, j] * p[j]
            Ap[i] = acc
            pAp += p[i] * acc
        alpha = rsold / pAp
        rsnew = 0.0
        for i in range(n):
            x[i] += alpha * p[i]
            r[i] -= alpha * Ap[i]
            rsnew += r[i] ** 2
        if math.sqrt(rsnew) < tol:
            break
        beta = rsnew / rsold
        for i in range(n):
            p[i] = r[i] + beta * p[i]
        rsold = rsnew
    return x[0] * x[n - 1] + 0.0 * it


def jacobi(u, unew, f, h, sweeps):
    nx, ny = u.shape
    for sweep in range(sweeps):
        diff = 0.0
        for i in range(1, nx - 1):
            for j in range(1, ny - 1):
                unew[i, j] = 0.25 * (u[i + 1, j] + u[i - 1, j] + u[i, j + 1] + u[i, j - 1] - h * h * f[i, j])
                diff = max(diff, abs(unew[i, j] - u[i, j]))
        u, unew = unew, u
        if diff < 1e-9:
            break
    return u[nx // 2, ny // 2]


def sor(grid, omega, steps):
    rows = len(grid)
    cols = len(grid[0])
    res = 0.0
    step = 0
    while step < steps:
        res = 0.0
        for i in range(1, rows - 1):
            for j in range(1, cols - 1):
                delta = 0.25 * (grid[i - 1][j] + grid[i + 1][j] + grid[i][j - 1] + grid[i][j + 1]) - grid[i][j]
                grid[i][j] += omega * delta
                res += abs(delta)
        step += 1
    return res


def power_iteration(A, v, count):
    n = len(v)
    lam = 0.0
    for _ in range(count):
        w = np.zeros(n)
        for i in range(n):
            for j in range(n):
                w[i] += A[i, j] * v[j]
        norm = 0.0
        for i in range(n):
            norm += w[i] * w[i]
        norm = norm**0.5
        for i in range(n):
            v[i] = w[i] / norm
        lam = norm
    return lam


def gram_schmidt(Q, R):
    m, n = Q.shape
    for j in range(n):
        for k in range(j):
            R[k, j] = 0
            for i in range(m):
                R[k, j] += Q[i, k] * Q[i, j]
            for i in range(m):
                Q[i, j] -= R[k, j] * Q[i, k]
        R[j, j] = 0
        for i in range(m):
            R[j, j] += Q[i, j] * Q[i, j]
        R[j, j] = np.sqrt(R[j, j])
        for i in range(m):
            Q[i, j] /= R[j, j]
    return R[0, 0] * R[n - 1, n - 1] + R[0, n - 1]


def matmul_triple(A, B, C):
    for i in range(len(A)):
        for j in range(len(B[0])):
            for k in range(len(B)):
                C[i][j] += A[i][k] * B[k][j]
    trace = 0
    for i in range(len(C)):
        trace += C[i][i]
    return trace


# ------------------------------------------------------------------------------------------------- dynamic programming
def matrix_chain(p, m, s):
    n = len(p) - 1
    for length in range(2, n + 1):
        for i in range(n - length + 1):
            j = i + length - 1
            m[i, j] = 1e30
            for k in range(i, j):
                cost = m[i, k] + m[k + 1, j] + p[i] * p[k + 1] * p[j + 1]
                if cost < m[i, j]:
                    m[i, j] = cost
                    s[i, j] = k
    return m[0, n - 1]


def dynamic_time_warping(a, b, D):
    n, m = len(a), len(b)
    for i in range(n + 1):
        for j in range(m + 1):
            D[i, j] = 1.0e10
    D[0, 0] = 0.0
    for i in range(1, n + 1):
        for j in range(1, m + 1):
            cost = (a[i - 1] - b[j - 1]) ** 2
            D[i, j] = cost + min(D[i - 1, j], D[i, j - 1], D[i - 1, j - 1])
    return D[n, m]


def longest_common(a, b, T):
    best = 0
    for i in range(len(a)):
        for j in range(len(b)):
            if a[i] == b[j]:
                T[i + 1, j + 1] = T[i, j] + 1
            elif T[i, j + 1] >= T[i + 1, j]:
                T[i + 1, j + 1] = T[i, j + 1]
            else:
                T[i + 1, j + 1] = T[i + 1, j]
            if T[i + 1, j + 1] > best:
                best = int(T[i + 1, j + 1])
    return best


def knapsack(values, weights, W, best):
    for i in range(len(values)):
        for w in range(W, weights[i] - 1, -1):
            best[w] = max(best[w], best[w - weights[i]] + values[i])
    return best[W]


def floyd_warshall(dist):
    V = dist.shape[0]
    for k in range(V):
        for i in range(V):
            for j in range(V):
                if dist[i, k] + dist[k, j] < dist[i, j]:
                    dist[i, j] = dist[i, k] + dist[k, j]
    total = 0.0
    for i in range(V):
        for j in range(V):
            total += dist[i, j]
    return total


def binomial_tree(S, K, r, sigma, T, N, V):
    dt = T / N
    u = math.exp(sigma * math.sqrt(dt))
    d = 1.0 / u
    q = (math.exp(r * dt) - d) / (u - d)
    disc = math.exp(-r * dt)
    for i in range(N + 1):
        V[i] = max(K - S * u ** (N - 2 * i), 0.0)
    for step in range(N - 1, -1, -1):
        for i in range(step + 1):
            hold = disc * (q * V[i] + (1 - q) * V[i + 1])
            exercise = K - S * u ** (step - 2 * i)
            V[i] = hold if hold > exercise else exercise
    return V[0]
