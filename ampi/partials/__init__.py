"""Partial derivatives of elementwise functions, as expressions: one table for arrays on tapes and for kernels.

`elementary` has NumPy's ufuncs, `special` those of ``scipy.special``.  An entry has one expression for each argument of
the function: the partial derivative in terms of the arguments ``x``, ``y``, ``z``, ``w`` and the result ``r``.
``None`` stands for a derivative that is zero, `special.UNKNOWN` for one that is not known.  Expressions may call
functions of the table and elementary functions.

`of_arrays` turns the expressions into functions of arrays, ``ampi.kernel.ir.partials`` into IR.  Both differentiate an
expression once more for second derivatives.
"""
