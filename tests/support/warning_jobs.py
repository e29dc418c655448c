"""A job that only warns; pool processes import it."""

import warnings


def warn(job):
    warnings.warn("numbers of\nlittle use", UserWarning, stacklevel=1)
    return {}
