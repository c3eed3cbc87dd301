# ruff: noqa: B007 (loops as their authors write them)
"""Loop programs in the style of textbooks, courses and small codes: functions with their arguments.

`tests/programs/test_loops_of_others.py` runs each with compiled loops and without.
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


# ------------------------------------------------------------------------------------------------ simulations, courses
class Body:
    def __init__(self, n):
        self.n = n
        self.pos = np.array([[0.1 * k, math.sin(k), math.cos(2.0 * k)] for k in range(n)])
        self.vel = np.array([[0.0, 0.1 * k, -0.05] for k in range(n)])
        self.G = 0.7
        self.eps = 0.05


def nbody(bodies, mass, dt, steps):
    acc = np.zeros((bodies.n, 3))
    for step in range(steps):
        for i in range(bodies.n):
            for k in range(3):
                acc[i, k] = 0.0
            for j in range(bodies.n):
                if i == j:
                    continue
                dx = bodies.pos[j, 0] - bodies.pos[i, 0]
                dy = bodies.pos[j, 1] - bodies.pos[i, 1]
                dz = bodies.pos[j, 2] - bodies.pos[i, 2]
                inv = (dx * dx + dy * dy + dz * dz + bodies.eps**2) ** -1.5
                acc[i, 0] += bodies.G * mass[j] * dx * inv
                acc[i, 1] += bodies.G * mass[j] * dy * inv
                acc[i, 2] += bodies.G * mass[j] * dz * inv
        for i in range(bodies.n):
            for k in range(3):
                bodies.vel[i, k] += dt * acc[i, k]
                bodies.pos[i, k] += dt * bodies.vel[i, k]
    energy = 0.0
    for i in range(bodies.n):
        energy += 0.5 * mass[i] * (bodies.vel[i, 0] ** 2 + bodies.vel[i, 1] ** 2 + bodies.vel[i, 2] ** 2)
    return energy


def lennard_jones(x, rc):
    pot = 0.0
    n = x.shape[0]
    for i in range(n - 1):
        for j in range(i + 1, n):
            r2 = 0.0
            for d in range(x.shape[1]):
                r2 += (x[i, d] - x[j, d]) ** 2
            if r2 > rc * rc:
                continue
            ir6 = 1.0 / r2**3
            pot += 4.0 * ir6 * (ir6 - 1.0)
    return pot


def derivs(y, k):
    return -k * y * (1.0 - y / 3.0)


def rk4(y, k, h, nstep):
    for _ in range(nstep):
        for i in range(len(y)):
            k1 = derivs(y[i], k)
            k2 = derivs(y[i] + 0.5 * h * k1, k)
            k3 = derivs(y[i] + 0.5 * h * k2, k)
            k4 = derivs(y[i] + h * k3, k)
            y[i] += h * (k1 + 2.0 * (k2 + k3) + k4) / 6.0
    return sum(y)


def game_of_life(board, new, generations):
    rows, cols = board.shape
    for g in range(generations):
        for r in range(rows):
            for c in range(cols):
                neighbours = 0
                for dr in (-1, 0, 1):
                    for dc in (-1, 0, 1):
                        if dr != 0 or dc != 0:
                            neighbours += board[(r + dr) % rows, (c + dc) % cols]
                if board[r, c] == 1 and neighbours in (2, 3):
                    new[r, c] = 1
                elif board[r, c] == 0 and neighbours == 3:
                    new[r, c] = 1
                else:
                    new[r, c] = 0
        for r in range(rows):
            for c in range(cols):
                board[r, c] = new[r, c]
    return board.sum()


def rule_automaton(cells, rule, steps):
    width = len(cells[0])
    for t in range(steps):
        for i in range(width):
            left, mid, right = cells[t, i - 1], cells[t, i], cells[t, (i + 1) % width]
            pattern = 4 * left + 2 * mid + right
            cells[t + 1, i] = (rule // 2**pattern) % 2
    return cells.sum()


def heat_rod(T, alpha, dx, dt, nt):
    nx = len(T)
    Tn = T.copy()
    for n in range(nt):
        for i in range(nx):
            Tn[i] = T[i]
        for i in range(1, nx - 1):
            T[i] = Tn[i] + alpha * dt / dx**2 * (Tn[i + 1] - 2 * Tn[i] + Tn[i - 1])
        T[0] = T[1]
        T[-1] = T[-2]
    return T[nx // 3]


def burgers(u, nu, dx, dt, nt):
    nx = u.size
    un = np.empty(nx)
    for n in range(nt):
        un[:] = u
        for i in range(1, nx - 1):
            if un[i] > 0:
                conv = un[i] * (un[i] - un[i - 1])
            else:
                conv = un[i] * (un[i + 1] - un[i])
            u[i] = un[i] - dt / dx * conv + nu * dt / dx**2 * (un[i + 1] - 2 * un[i] + un[i - 1])
        u[0] = un[-2]
    return np.sum(u * u)


def ising(spins, J, beta, seed, sweeps):
    """A Metropolis run with a linear congruential generator."""
    L = spins.shape[0]
    state = seed
    E = 0.0
    for sweep in range(sweeps):
        for i in range(L):
            for j in range(L):
                nb = spins[(i + 1) % L, j] + spins[i - 1, j] + spins[i, (j + 1) % L] + spins[i, j - 1]
                dE = 2.0 * J * spins[i, j] * nb
                state = (1103515245 * state + 12345) % 2147483648
                if dE <= 0.0 or state / 2147483648.0 < math.exp(-beta * dE):
                    spins[i, j] = -spins[i, j]
                    E += dE
    return E


def monte_carlo_pi(n, seed):
    inside = 0
    for k in range(n):
        seed = (16807 * seed) % 2147483647
        x = seed / 2147483647
        seed = (16807 * seed) % 2147483647
        y = seed / 2147483647
        if x * x + y * y <= 1:
            inside += 1
    return 4 * inside / n


def mc_option(S0, K, r, sigma, T, z):
    payoff = 0.0
    for i in range(z.shape[0]):
        path = S0
        dt = T / z.shape[1]
        for j in range(z.shape[1]):
            path *= math.exp((r - 0.5 * sigma**2) * dt + sigma * math.sqrt(dt) * z[i, j])
        payoff += max(path - K, 0.0)
    return math.exp(-r * T) * payoff / len(z)


# -------------------------------------------------------------------------------------- numbers, sequences, and images
def bisect(a, lo, hi, tol):
    flo = lo**3 - a * lo - 1.0
    while hi - lo > tol:
        mid = 0.5 * (lo + hi)
        fm = mid**3 - a * mid - 1.0
        if flo * fm <= 0.0:
            hi = mid
        else:
            lo, flo = mid, fm
    return 0.5 * (lo + hi)


def newton_all(c, x):
    for i in range(len(c)):
        xi = x[i]
        for _ in range(50):
            fx = xi - c[i] * math.cos(xi)
            dfx = 1.0 + c[i] * math.sin(xi)
            step = fx / dfx
            xi -= step
            if abs(step) < 1e-13:
                break
        else:
            raise RuntimeError("no convergence")
        x[i] = xi
    return sum(x[i] for i in range(len(c)))


def trapzd(a, b, n):
    h = (b - a) / n
    s = 0.5 * (math.exp(-a * a) + math.exp(-b * b))
    for i in range(1, n):
        x = a + i * h
        s += math.exp(-x * x)
    return s * h


def horner(coeffs, x):
    total = 0.0
    for xi in x:
        result = 0
        for c in coeffs[::-1]:
            result = result * xi + c
        total += result
    return total


def mandelbrot(xs, ys, counts, maxiter):
    for iy in range(len(ys)):
        for ix in range(len(xs)):
            zr = zi = 0.0
            n = 0
            while zr * zr + zi * zi <= 4.0 and n < maxiter:
                zr, zi = zr * zr - zi * zi + xs[ix], 2.0 * zr * zi + ys[iy]
                n += 1
            counts[iy, ix] = n
    return counts.sum()


def histogram(data, lo, hi, nbins, hist):
    width = (hi - lo) / nbins
    for value in data:
        b = int((value - lo) / width)
        if b < 0 or b >= nbins:
            continue
        hist[b] += 1
    return hist[nbins // 2]


def kernel_density(data, grid, h, out):
    for i, g in enumerate(grid):
        s = 0.0
        for d in data:
            s += math.exp(-0.5 * ((g - d) / h) ** 2)
        out[i] = s / (len(data) * h * math.sqrt(2 * math.pi))
    return out[2] - out[-3]


def bubble_sort(a):
    n = len(a)
    swapped = True
    while swapped:
        swapped = False
        for i in range(1, n):
            if a[i - 1] > a[i]:
                a[i - 1], a[i] = a[i], a[i - 1]
                swapped = True
        n -= 1
    return a[0] + 3.0 * a[-1]


def insertion_sort(a):
    for i in range(1, len(a)):
        key = a[i]
        j = i - 1
        while j >= 0 and a[j] > key:
            a[j + 1] = a[j]
            j -= 1
        a[j + 1] = key
    return a[1] * a[2]


def find_pattern(text, pattern, hits):
    n, m = len(text), len(pattern)
    found = 0
    for i in range(n - m + 1):
        j = 0
        while j < m and text[i + j] == pattern[j]:
            j += 1
        if j == m:
            hits[found] = i
            found += 1
    return found


def sieve(flags):
    n = len(flags)
    p = 2
    while p * p < n:
        if flags[p]:
            for q in range(p * p, n, p):
                flags[q] = 0
        p += 1
    return int(flags.sum())


def blur(image, weights, out):
    H, W = image.shape
    K = weights.shape[0] // 2
    for y in range(K, H - K):
        for x in range(K, W - K):
            acc = 0.0
            for dy in range(-K, K + 1):
                for dx in range(-K, K + 1):
                    acc += image[y + dy, x + dx] * weights[dy + K, dx + K]
            out[y, x] = acc
    return out[K, K] * out[H - K - 1, W - K - 1]


def slow_fourier(re, im, outr, outi):
    N = len(re)
    for k in range(N):
        for t in range(N):
            angle = -2.0 * math.pi * k * t / N
            outr[k] += re[t] * math.cos(angle) - im[t] * math.sin(angle)
            outi[k] += re[t] * math.sin(angle) + im[t] * math.cos(angle)
    power = 0.0
    for k in range(N // 2):
        power += (k + 1) * (outr[k] ** 2 + outi[k] ** 2)
    return power


def kmeans(points, centers, labels, rounds):
    for _ in range(rounds):
        for i in range(len(points)):
            best = 1e300
            for c in range(len(centers)):
                d = 0.0
                for k in range(points.shape[1]):
                    d += (points[i][k] - centers[c][k]) ** 2
                if d < best:
                    best = d
                    labels[i] = c
        for c in range(len(centers)):
            count = 0
            total = [0.0] * points.shape[1]
            for i in range(len(points)):
                if labels[i] == c:
                    count += 1
                    for k in range(points.shape[1]):
                        total[k] += points[i, k]
            if count > 0:
                for k in range(points.shape[1]):
                    centers[c, k] = total[k] / count
    return centers[0, 0] + centers[1, 1]


def csr_matvec(data, indices, indptr, x, y):
    for row in range(len(indptr) - 1):
        s = 0.0
        for jj in range(indptr[row], indptr[row + 1]):
            s += data[jj] * x[indices[jj]]
        y[row] = s
    return sum(y * y)


def hmm_forward(A, B, pi, obs, alpha):
    N = len(pi)
    loglik = 0.0
    for t in range(len(obs)):
        scale = 0.0
        for j in range(N):
            if t == 0:
                p = pi[j]
            else:
                p = 0.0
                for i in range(N):
                    p += alpha[t - 1, i] * A[i, j]
            alpha[t, j] = p * B[j, obs[t]]
            scale += alpha[t, j]
        for j in range(N):
            alpha[t, j] /= scale
        loglik += math.log(scale)
    return loglik


def collatz(limits, lengths):
    for k in range(len(limits)):
        n = int(limits[k])
        steps = 0
        while n != 1:
            if n % 2 == 0:
                n //= 2
            else:
                n = 3 * n + 1
            steps += 1
        lengths[k] = steps
    return lengths.max()
