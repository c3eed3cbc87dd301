"""Base classes of ampi's versions of mpi4py's classes: instance checks, construction from handles, constants."""

from __future__ import annotations

from typing import Any


class AcceptsBase(type):
    """Metaclass: objects of the mpi4py class that a class stands for (``_base``) count as instances."""

    def __instancecheck__(cls, instance: Any) -> bool:
        return type.__instancecheck__(cls.__dict__.get("_base", cls), instance)

    def __subclasscheck__(cls, subclass: type) -> bool:
        return type.__subclasscheck__(cls.__dict__.get("_base", cls), subclass)


class Handles:
    """Constructors from handles, which give objects of ampi's classes; mpi4py's give objects of mpi4py's."""

    __slots__ = ()
    _base: Any

    @classmethod
    def fromhandle(cls, handle: int) -> Any:
        """Object of an MPI handle."""
        return cls(cls._base.fromhandle(handle))  # type: ignore[call-arg]

    @classmethod
    def fromint(cls, arg: int) -> Any:
        """Object of an integer handle of the MPI ABI."""
        return cls(cls._base.fromint(arg))  # type: ignore[call-arg]

    @classmethod
    def f2py(cls, arg: int) -> Any:
        """Object of a Fortran handle."""
        return cls(cls._base.f2py(arg))  # type: ignore[call-arg]


class Constant:
    """Objects that are predefined: pickled by their names, never freed."""

    __slots__ = ()

    def free(self) -> None:
        """Free the object if it is not predefined or null."""
        if id(self) not in constant_names:
            super().free()  # type: ignore[misc]

    def __reduce__(self) -> Any:
        name = constant_names.get(id(self))
        return super().__reduce__() if name is None else name


constant_names: dict[int, str] = {}
"""Names of ampi's predefined datatypes and operations, by id."""


def predefined(base: dict[str, Any], kind: type, ours: Any) -> dict[str, Any]:
    """Return ampi's objects for the predefined ones of a class of mpi4py, by name."""
    made: dict[int, Any] = {}
    constants = {}
    for name, value in base.items():
        if type(value) is kind:
            if id(value) not in made:
                made[id(value)] = ours.__new__(ours, value)
                constant_names[id(made[id(value)])] = name
            constants[name] = made[id(value)]
    return constants
