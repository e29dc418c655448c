"""A reader for published pickle files (CIFAR, class splits) that calls only allowed functions."""

import io
import pickle
from collections.abc import Mapping
from typing import Any

import numpy as np

# Names that a file may use. Lists, dicts, strings and numbers need none.
CONTAINERS: dict[tuple[str, str], Any] = {}
INTEGER_SCALARS = {  # 341 entries of the Herbarium19 split are numpy integers
    ("numpy.core.multiarray", "scalar"): np.int64(0).__reduce__()[0],
    ("numpy", "dtype"): np.dtype,
}
ARRAYS = {  # CIFAR
    ("numpy.core.multiarray", "_reconstruct"): np.zeros(1).__reduce__()[0],
    # The same function in files written by numpy 2
    ("numpy._core.multiarray", "_reconstruct"): np.zeros(1).__reduce__()[0],
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
}


def read_pickle(
    content: bytes, source: object, allowed: Mapping[tuple[str, str], Any], encoding: str = "ASCII"
) -> Any:
    """The object pickled in `content`; a name outside `allowed` is refused before it is looked up.

    Unpickling calls the functions that a file names, so a safe reader accepts only names it knows.

    Args:
        source: the path, for messages.
        encoding: "latin1" for files written by Python 2. Default: "ASCII".

    >>> read_pickle(pickle.dumps({"Old": [1, 0]}), "split.pkl", CONTAINERS)
    {'Old': [1, 0]}
    """

    class Restricted(pickle.Unpickler):
        def find_class(self, module: str, name: str) -> Any:
            if (module, name) not in allowed:
                raise pickle.UnpicklingError(f"it names {module}.{name}, which such a file does not need")
            return allowed[module, name]

    try:
        return Restricted(io.BytesIO(content), encoding=encoding).load()
    except Exception as error:  # a damaged pickle can raise almost anything
        raise ValueError(
            f"{source} is refused or damaged: {error}. Only allowed functions were called; "
            "download the published file again"
        ) from error
