"""Reading the few public files that are Python pickles (CIFAR, class splits) without running anything they name."""

import io
import pickle
from collections.abc import Mapping
from typing import Any

import numpy as np

# Lists, dicts, strings and numbers need no name at all; 341 entries of the Herbarium19 split are numpy integers.
CONTAINERS: dict[tuple[str, str], Any] = {}
INTEGER_SCALARS = {
    ("numpy.core.multiarray", "scalar"): np.int64(0).__reduce__()[0],
    ("numpy", "dtype"): np.dtype,
}
ARRAYS = {  # CIFAR
    ("numpy.core.multiarray", "_reconstruct"): np.zeros(1).__reduce__()[0],
    ("numpy._core.multiarray", "_reconstruct"): np.zeros(1).__reduce__()[
        0
    ],  # the same function in files written by numpy 2
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
}


def read_pickle(
    content: bytes, source: object, allowed: Mapping[tuple[str, str], Any], encoding: str = "ASCII"
) -> Any:
    """The object pickled in `content`; a name outside `allowed` is refused before it is looked up.

    A pickle calls what it names, so the only safe reader is one that knows every name beforehand. `source` is the path
    for messages; `encoding` is "latin1" for files written by Python 2.

    >>> read_pickle(pickle.dumps({"Old": [1, 0]}), "split.pkl", CONTAINERS)
    {'Old': [1, 0]}
    """

    class Restricted(pickle.Unpickler):
        def find_class(self, module: str, name: str) -> Any:
            if (module, name) not in allowed:
                raise pickle.UnpicklingError(f"it names {module}.{name}, which this file has no need of")
            return allowed[module, name]

    try:
        return Restricted(io.BytesIO(content), encoding=encoding).load()
    except Exception as error:  # a damaged pickle can raise almost anything
        raise ValueError(
            f"{source} is refused or damaged: {error}. It was not run; download the published file again"
        ) from error
