"""Kernels with recursive functions; part of `language_cases`."""

import math

import numpy as np
from by_python import recursive
from language_cases import SCALE, case, x, y


@recursive
def fibonacci(n, u, v):
    return u if n < 2 else fibonacci(n - 1, u * 0.9, v) + v * fibonacci(n - 2, u, v * u)


@recursive
def simpson(f, a, b, fa, fm, fb, tolerance, depth):
    m = 0.5 * (a + b)
    left, right = f(0.5 * (a + m)), f(0.5 * (m + b))
    whole = (b - a) / 6 * (fa + 4 * fm + fb)
    parts = (b - a) / 12 * (fa + 4 * left + 2 * fm + 4 * right + fb)
    if depth <= 0 or abs(parts - whole) <= 15 * tolerance:
        return parts + (parts - whole) / 15
    return simpson(f, a, m, fa, left, fm, tolerance / 2, depth - 1) + simpson(
        f, m, b, fm, right, fb, tolerance=tolerance / 2, depth=depth - 1
    )


@case(0.1, 1.4, 0.8)
def adaptive_quadrature(a, b, p):
    def f(t):
        return math.exp(-p * t * t) * math.sin(4 * t)

    return (
        fibonacci(4, a, b) * simpson(math.sin, a, b, math.sin(a), math.sin(0.5 * (a + b)), math.sin(b), 1e-5, 12) * f(b)
    )


@recursive
def quicksort(a, b, low, high):
    if low < high:
        pivot = a[high]
        i = low - 1
        for j in range(low, high):
            if a[j] <= pivot:
                i += 1
                a[i], a[j] = a[j], a[i]
                b[i], b[j] = b[j], b[i] * 0.9
        a[i + 1], a[high] = a[high], a[i + 1]
        quicksort(a, b, low, i)
        quicksort(a, b, i + 2, high)


@case(np.array([0.7, 0.2, 1.3, 0.4, 0.9, 0.1]), np.array([1.1, 0.4, 0.3, 0.9, 0.6, 0.8]))
def sorted_by_parts(a, b):
    quicksort(a, b, 0, len(a) - 1)
    s = 0.0
    for i in range(len(a)):
        s += a[i] ** i * b[i]
    return s


@recursive
def below(node, first, following, values, weight):
    """A weighted number and the number of nodes, for the subtree of a node."""
    total, count = values[node] * weight, 1
    child = first[node]
    while child >= 0:
        t, c = below(child, first, following, values, weight * 0.7)
        total += math.sin(t) * values[node]
        count += c
        child = following[child]
    values[node] *= total
    return total, count


FIRST, FOLLOWING = np.array([1, 3, -1, 4, -1, -1]), np.array([-1, 2, 5, -1, -1, -1])


@case(np.array([0.7, 0.8, 1.3, 0.4, 0.9, 0.5]), 0.8)
def tree_of_numbers(values, weight):
    total, count = below(0, FIRST, FOLLOWING, values, weight)
    return total * count


@recursive
def chain(n, u, a):
    if n == 0:
        return u
    return 0.8 * chain(n - 1, u * a[n % 4], a) + a[n % 4] * u


@case(x, 0.4)
def deeper_than_the_first_stack(a, u):
    return chain(40, u, a)


@recursive
def climb(n, a, u):
    """Calls in loops that are left early, in conditions, and on arrays that they change themselves."""
    for k, t in enumerate(a):
        if k == n or k > 2:
            break
        if t > 1.2 and climb(k, a, u * 0.5) > 0.2:
            continue
        a[k] += 0.3 * climb(k, a, u * a[n % 4]) + u
        if a[k] > 1.5:
            return a[k] * u
    for i in range(n - 1, 0, -2):
        a[i] *= a[0] + (climb(i - 2, a, u) if i > 2 else u)
    return u * u if n % 2 else max(a[n % 4] * 2.0, a[0] - climb(n - 3, a, 0.2) if n > 2 else 0.5)


@case(x, 0.6)
def exits_and_changes(a, u):
    return climb(3, a, u)


@recursive
def halves(a, low, high, depth=0, scale=1.0, weights=None):
    """Defaults that change from call to call, and one that does not."""
    if high - low < 2:
        return scale * a[low] * depth if weights is None else weights[low]
    middle = (low + high) // 2
    return halves(a, low, middle, depth + 1, scale * a[low]) * halves(a, middle, high, depth=depth + 2) + scale


@case(x)
def defaults_that_change(a):
    return halves(a, 0, len(a))


@recursive
def power(u, n):
    """A call whose result is returned, one in the middle of a product, and one that a constant excludes."""
    if SCALE < 0.0:
        t = u * u
        u = power(t, n) * t
    if n < 0:
        return power(1.0 / u, -n)
    if n == 0:
        return 1
    return u * power(u, n - 1) if n % 2 else power(u * u, n // 2)


@case(x, y)
def powers_by_squares(a, b):
    s = 0.0
    for i in range(len(a)):
        s += power(a[i], 5 - 3 * i) * b[i]
    return s


@recursive
def evens(u, n, a):
    return u if n == 0 else odds(n - 1, a, u * 0.5) * a[n % 4]


@recursive
def odds(n, numbers, u=0.3):
    if n == 0:
        return 0.2
    numbers[n % 4] *= u
    return math.sin(evens(n=n - 1, u=u * 0.7, a=numbers) + numbers[0]) + evens(u, n // 2, numbers)


@case(x, 0.6)
def even_and_odd(a, u):
    return evens(u, 4, a) - odds(3, a) + evens(u * u, 2, a)


@recursive
def weighed(node, first, following, values, weight):
    """A weighted number and the number of nodes, for a node of a tree and those below it."""
    total, count = values[node] * weight, 1
    if first[node] >= 0:
        below_it = siblings(first[node], first, following, values, weight * 0.7)
        total += below_it[0]
        count += below_it[1]
    values[node] *= total
    return total, count


@recursive
def siblings(node, first, following, numbers, weight):
    total, count = 1.0, 0
    while node >= 0:
        t, c = weighed(node, first, following, numbers, weight)
        total, count = total * t + numbers[node], count + c
        node = following[node]
    return math.sin(total), count


@case(np.array([0.7, 0.8, 1.3, 0.4, 0.9, 0.5]), 0.8)
def tree_by_two_functions(values, weight):
    total, count = weighed(0, FIRST, FOLLOWING, values, weight)
    return total * count


@recursive
def rise(a, k):
    if k < len(a):
        a[k] *= a[k - 1]
        turn(a, k + 1)
        a[k] += a[0]


@recursive
def turn(a, k):
    if a[0] > 5.0:
        return
    fall(a, k)


@recursive
def fall(a, k):
    a[k - 1] = math.sin(a[k - 1])
    rise(a, k)
    a[k - 1] *= a[0]


@case(x)
def three_that_return_nothing(a):
    rise(a, 1)
    return a[0] * a[1]
