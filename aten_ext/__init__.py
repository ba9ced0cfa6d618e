"""The C++ and CUDA sources of aten_ext. The Python package lies in ``python/aten_ext``.

A folder without this file would be imported, from the root of a checkout, as an empty package, and
nothing would be overridden without a word. So this file hands over to the installed package, or says that
there is none.
"""

import importlib.machinery
import os
import sys

_here = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_spec = importlib.machinery.PathFinder.find_spec(
    __name__, [path for path in sys.path if os.path.abspath(path or os.getcwd()) != _here]
)
if _spec is None or _spec.loader is None or _spec.origin is None:
    raise ImportError(
        "[aten_ext] this folder holds the C++ sources and the Python package is not installed; "
        "build and install it with: pip install --no-build-isolation -e ."
    )
__file__ = _spec.origin
__path__ = list(_spec.submodule_search_locations or [])
__spec__ = _spec
_spec.loader.exec_module(sys.modules[__name__])
