"""Programs as they stand: what makes one that was written for NumPy, Numba and mpi4py differentiable without an edit.

`python -m ampi.run` and `ampi.trace` go through these in the order in which a program does:

* ``names``: the variables that were asked for, as they are written on the command line;
* ``modules``: which modules are the program's own, and how they are loaded;
* ``stand_ins``, ``compiled``, ``numbers``: what these modules get for ``numpy``, ``numba``, ``math`` and ``float()``;
* ``edits``, ``bindings``: the changes to their syntax trees, by which variables are watched and read;
* ``session``: what is watched and read as the program runs; ``declared``: the same by two lines of the program's own;
* ``runs``: one run of the program, as clean as the one before;
* ``gradients``, ``differences``: what the runs give, and the comparison with finite differences;
* ``command``, ``results``: the command line, and what is printed and written.
"""
