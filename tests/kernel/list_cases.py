"""Kernels with lists that grow and shrink; part of `language_cases`."""

import numba
import numpy as np
from language_cases import SCALE, case, x, y
from numba import types
from numba.typed import List


@case(x, y)
def list_after_its_comprehension(a, b):
    squares = [v * v for v in a]
    first = squares[0] * len(squares)
    for i in range(b.shape[0]):
        squares.append(b[i] * squares[i])
    squares += [first, 2.0 * b[0]]
    squares.extend([v * first for v in b if v > 0.5])
    copy = squares[1:4]
    squares[1] = 5.0 * a[0]
    return np.array(squares).sum() + copy[0] * squares[-1] + len(squares), np.array(copy)


@case(x, y, 0.4)
def lists_of_numbas_types(a, b, limit):
    places = List.empty_list(numba.types.int32)
    kept = numba.typed.List.empty_list(numba.float64)
    single = List.empty_list(numba.float32)
    whole = List.empty_list(types.int64)
    for i in range(a.shape[0]):
        if i % 3:
            places.append(i)
            kept.append(a[i] * b[i % b.shape[0]])
    kept.append(2)
    kept.insert(0, limit * 3)
    single.append(1.0 / 3.0)
    whole.append(7)
    result = np.zeros(len(kept))
    for k in range(len(places)):
        result[places[k]] = kept[k + 1] * a[places[k]]
    result[-1] += kept.pop() * whole[0] + kept[0] * kept[-1]
    return result * single[0]


@case(x, 3)
def triangular_list(a, n):
    products = []
    for i in range(n):
        for j in range(i + 1):
            products.append(a[i] * a[j])
    for k in range(n):
        products.append(products[k] * products[-1])
    ordered = np.asarray(products)
    products[0] = 2.0 * a[1]
    return np.sin(ordered).sum() + products[0] * products[1]


@case(x, 0.6)
def list_as_long_as_a_while_loop(a, limit):
    found = [a[0] * 1.0]
    i, s = 0, 0.0
    while i < a.shape[0]:
        if a[i] > limit:
            found.append(a[i] * found[-1])
            i += 2
        else:
            i += 1
        s = s * 0.5 + found[-1]
    n = 0
    while True:
        n += 1
        if n == 2:
            continue
        if n > 3:
            break
        found.append(s * n)
    return s, found[-1] * found[-2], len(found)


@case(x, y)
def stack_of_numbers(a, b):
    stack = [a[0] * 1.0, b[0] * b[1]]
    s = 0.0
    for i in range(a.shape[0]):
        top = stack.pop()
        if top > 0.5:
            stack.append(top * a[i])
            stack.append(top - b[i])
        else:
            stack.append(top + SCALE)
        s += stack[-1] * len(stack)
    while len(stack) > 1:
        s = s * 0.5 + stack.pop() * stack.pop(0)
        stack.append(s)
    return s + stack[0]


@case(x, y)
def items_inserted_and_removed(a, b):
    items = [a[0] * b[0]]
    items.insert(0, a[1] * 2.0)
    items.insert(-1, b[1] * a[2])
    items.insert(100, b[2] * b[2])
    taken = items.pop(-2)
    for k in range(2):
        items.extend((a[3] * k, taken * b[3]))
    items.reverse()
    del items[1]
    s = 0.0
    for k in range(-2, 2):
        s += items[k] * (k + 3.0) * a[k]
    items.sort()
    items.append(s * taken)
    last = items.pop() * items[0] + len(items)
    return np.array(items), last


@case(x, y)
def lists_begun_anew(a, b):
    sums, part = [], [0.5]
    for i in range(a.shape[0]):
        part.append(a[i] * part[-1] + b[i])
        if i % 2 == 1:
            sums.append(sum(part) * len(part))
            part = [b[i] * 1.0]
    for i in range(2):
        row = [a[i] * 1.0]
        for j in range(i, 3):
            row.append(row[-1] * b[j])
        sums.append(row.pop() + row[0])
    part.clear()
    part.append(sums[-1] * sums[0])
    return np.array(sums).sum() * part[0], len(part)


# ------------------------------------------------------------------------------------------------ lists of tuples


@case(x, y)
def tuples_that_grow(a, b):
    pairs = [(0, a[0] * 1.0)]
    for i in range(1, 4):
        pairs.append((i % 3, a[i] * pairs[-1][1] + b[i]))
    s = 0.0
    for k, v in pairs:
        s = s * a[k] + v * (k + 1)
    for n, (k, v) in enumerate(pairs):
        s += n * v * b[k]
    number, last = pairs.pop()
    pairs.insert(1, (2, last * s))
    pairs.reverse()
    k, first = pairs[len(pairs) - 2]
    later = pairs[:0:-1]
    return s * last * number, first * a[k] + later[0][1] * len(later), len(pairs) * pairs[-1][1]


@case(x)
def several_loops_in_comprehensions(a):
    n = a.shape[0]
    pairs = [(i, j) for i in range(n) for j in range(i + 1, n)]
    products = np.array([u * v for u in a for v in a if u > v])
    lower = [a[j] * i for i in range(n) for j in range(i)]
    s = 0.0
    for i, j in pairs:
        s += a[i] * a[j] ** 2
    return s + pairs[-1][0] * a[pairs[2][1]], products, lower[-1] * lower[1] * len(lower)


@case(x, y)
def warped_in_time(a, b):
    n, m = a.shape[0], b.shape[0]
    costs = np.zeros((n + 1, m + 1))
    costs[0, 1:] = costs[1:, 0] = 1e9
    for i in range(n):
        for j in range(m):
            costs[i + 1, j + 1] = (a[i] - b[j]) ** 2 + min(costs[i, j + 1], costs[i + 1, j], costs[i, j])
    i, j = n, m
    path = []
    while i > 0 and j > 0:
        path.append((i - 1, j - 1))
        best = np.argmin(np.array([costs[i - 1, j - 1], costs[i - 1, j], costs[i, j - 1]]))
        if best == 0:
            i, j = i - 1, j - 1
        elif best == 1:
            i -= 1
        else:
            j -= 1
    s = 0.0
    for i, j in path[::-1]:
        s = 0.9 * s + (a[i] - b[j]) ** 2
    return s, costs[n, m]


@case(x)
def tuples_as_rows(a):
    rows = []
    for i in range(3):
        for j in range(i):
            rows.append((a[i], a[j] * a[i], 2))
    kept = np.array(rows)
    return np.asarray(rows)[:, 1] * kept[::-1, 0] * kept.shape[1]


@numba.njit
def neighbours(a, n):
    found = []
    for i in range(n):
        found.append((i, a[i] * a[i + 1]))
    return found, [v * v for v in a]


@case(x)
def lists_of_a_callee(a):
    pairs, squares = neighbours(a, 3)
    s = 0.0
    for i, v in pairs:
        s += (i + 1) * v * squares[i]
    return s * len(squares) * squares[-1] + pairs[1][1]


@case(x)
def lists_of_tuples_begun_anew(a):
    s = 0.0
    for k in range(3):
        row = []
        for i in range(k + 1):
            row.append((a[i], a[i] * a[k]))
        for u, v in row:
            s += u * v
        other = row
        s += other[-1][0] * s
    return s


@case(x, y)
def parts_from_lists(a, b):
    c = np.zeros((2, 4))
    c[0, :3] = [a[0] * b[0], a[1], 1.0]
    c[1] = (a[0], b[1], a[2] * a[2], b[3])
    k = 2
    a[:k] = [b[0] * a[1], a[0]]
    return c * a


@case(x, y)
def copies_of_sequences(a, b):
    places = list(range(3))
    places.append(1)
    values = list(a)
    values.append(b[0] * values[1])
    values[2] = 2.0
    pair = list((a[3], b[1] * 2.0))
    s = len(list(b)) * pair[-1]
    for k, v in list(enumerate(values)):
        s += k * v * v
    for v, w in list(zip(b, [v * a[0] for v in b])):
        s += v * w
    for k in places:
        s += a[k] * b[k] * pair[0]
    return s, np.array(values) * np.array(list(b * 3.0))[0]


@case(x, y)
def added_lists(a, b):
    large = [v * v for v in a if v > 0.75]
    both = large + [b[0], 3.0]
    again = both + large
    corners = [(0, j) for j in range(3)] + [(i, 2) for i in range(1, 3)]
    weighted = [(k, a[k] * b[k]) for k in range(2)]
    weighted = weighted + [(3, a[1] * 2.0)]
    s = 0.0
    for i, j in corners:
        s += a[i] * b[j]
    for k, v in weighted + weighted[:1]:
        s += (k + 1) * v * v
    return s + len(again), np.array(again)


@case(x, y, np.array([0, 2, 3, 7]), np.array([1, 2, 6, 7]))
def two_lists_of_one_loop(a, b, first, second):
    """The product of two sparse vectors."""
    places, values = [], []
    i = j = 0
    while i < first.shape[0] and j < second.shape[0]:
        if first[i] == second[j]:
            product = a[i] * b[j]
            if product != 0.0:
                places.append(first[i])
                values.append(product)
            i += 1
            j += 1
        elif first[i] < second[j]:
            i += 1
        else:
            j += 1
    s = 0.0
    for k in range(len(places)):
        s += places[k] * values[k] * values[k]
    return s


@case(x, y)
def lists_apart_from_their_copies(a, b):
    pairs = [(k, a[k]) for k in range(3)]
    same = list(pairs)
    more = list(same)
    pairs.insert(0, (9, a[3]))
    pairs.reverse()
    more.append((5, b[0]))
    values = [v * 1.0 for v in a]
    others = list(values)
    others[0] = 7.0
    whole = list(b)
    whole[1] = 9.0
    longer = list(whole)
    longer.append(3.0)
    s = same[0][1] * pairs[0][1] + more[-1][1] * len(pairs) + len(same) * a[2]
    return s + values[0] * b[1] * others[0] + whole[1] * b[1] * b[2] + len(whole) * longer[-1] * a[1]
