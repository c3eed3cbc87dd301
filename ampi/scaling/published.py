"""Published overheads of gradients, to draw beside measured ones.

The figures are those of W. S. Moses, S. H. K. Narayanan, L. Paehler, V. Churavy, M. Schanen, J. Hückelheim, J. Doerfert
and P. Hovland, *Scalable automatic differentiation of multiple parallel paradigms through compiler augmentation*, SC22:
time of the gradient over that of the primal, on their machines and with their sizes.
"""

CITATION = "Moses et al., SC22"
LULESH_RANKS = (1, 8, 27, 64)
OVERHEADS: dict[str, dict[str, dict[int, float]]] = {
    "lulesh-strong": {
        "Enzyme C++": dict(zip(LULESH_RANKS, (5.23, 4.11, 3.89, 3.82))),
        "Enzyme Julia": dict(zip(LULESH_RANKS, (5.55, 6.97, 6.46, 5.48))),
        "Enzyme RAJA": dict(zip(LULESH_RANKS, (5.67, 5.55, 5.89, 5.74))),
        "CoDiPack": dict(zip(LULESH_RANKS, (9.63, 9.09, 7.32, 4.39))),
    },
    "lulesh-weak": {
        "Enzyme C++": dict(zip(LULESH_RANKS, (4.63, 4.30, 4.00, 3.44))),
        "CoDiPack": dict(zip(LULESH_RANKS, (11.26, 10.17, 7.88, 4.38))),
    },
    "minibude-openmp": {"Enzyme C++ (OpenMP)": {1: 2.38, 64: 3.92}},
}
