"""EAGC-ops: the Energy-Aware Gradient Coordinator for Generalized Category Discovery.

eagc = EAGC(Subspace.conceptor(labelled_features))
z = eagc(z, z_ref, mask)        # identity forward; the backward pass is coordinated
"""

try:
    from eagc_ops import kernels  # noqa: F401  (a folder of its own in the repository, mapped into the package when installed)
except ImportError as error:
    if error.name != "eagc_ops.kernels" and "cannot import name 'kernels'" not in str(error):
        raise
    raise ImportError(
        "eagc_ops was found without its sub-packages: Python started in the root of a clone sees ./eagc_ops "
        "before the installed package. Install the clone with `pip install -e .`, or start Python in a "
        "different folder."
    ) from error

from eagc_ops import diagnostics
from eagc_ops.encoder import AnchoredEncoder
from eagc_ops.functional import eagc_op
from eagc_ops.module import EAGC
from eagc_ops.subspace import Subspace

__version__ = "0.1.0"
__all__ = ["EAGC", "AnchoredEncoder", "Subspace", "diagnostics", "eagc_op"]
