# ruff: noqa: B007 (loops as their authors write them)
"""Loop programs for simulations, numbers, sequences and images; see `loops_of_others`."""

import math

import numpy as np


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
