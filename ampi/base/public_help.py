"""Help that shows only what users need of a class."""

from __future__ import annotations


class PublicHelp(type):
    """Metaclass of classes whose ``help()`` and completion list only the methods named in ``for_users``."""

    for_users: frozenset[str]

    def __dir__(cls) -> list[str]:
        hidden = next(vars(c).keys() for c in cls.__mro__ if "for_users" in vars(c)) - cls.for_users
        return [name for name in super().__dir__() if name not in hidden or name.startswith("_")]
