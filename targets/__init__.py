"""Target families: each folder is one family (backend, engine, devices, runtimes).

`edgefuse.targets()` is the function of the verb `targets`, and this package has its name; so the package can
be called (docs/decisions/0001). Python 3.6.
"""

import sys
import types


class _Families(types.ModuleType):
    def __call__(self):  # type: ignore[no-untyped-def]
        """Return one row a device, as `edgefuse targets --json` prints them."""
        from edgefuse.compose.targets import list_targets

        return list_targets()


sys.modules[__name__].__class__ = _Families
