"""Gradients of unmodified programs that were written for NumPy, Numba and mpi4py.

`python -m ampi.run` and `ampi.trace` use these modules, in this order:

* ``names``: the requested variables, as written on the command line;
* ``modules``: the program's own modules, and how they are loaded;
* ``stand_ins``, ``compiled``, ``numbers``: replacements for ``numpy``, ``numba``, ``math`` and ``float()`` in them;
* ``edits``, ``bindings``: the changes to their syntax trees by which variables are watched and read;
* ``session``: the variables watched and read while the program runs; ``declared``: those that the program itself marks;
* ``runs``: one run of the program, independent of earlier ones;
* ``gradients``, ``differences``: the results of runs, and the comparison with finite differences;
* ``command``, ``results``: the command line, and printed and written output.
"""
