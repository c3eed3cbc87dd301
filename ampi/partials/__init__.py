"""Partial derivatives of elementwise functions, as expressions: one table for arrays on tapes and for kernels.

`elementary` has NumPy's ufuncs, `special` those of ``scipy.special``.  An entry has one expression for each argument of
the function: the partial derivative, of the arguments ``x``, ``y``, ``z``, ``w`` and the result ``r``.  ``None``
stands for a derivative that is zero, `special.UNKNOWN` for one that is not known.  Calls in expressions are of
functions of the table and of elementary ones.

`of_arrays` makes functions of arrays of the expressions, ``ampi.kernel.ir.partials`` makes parts of programs of them.
Both differentiate an expression once more for second derivatives.
"""
