"""A dispatch mode that shows where the host would wait for a GPU, inside the operator's opaque ops too."""

from eagc_ops.bench.work import Watch, why_it_waits


class NoWaiting(Watch):
    """Raises when the host would wait for a GPU: for a value, or for a size that depends on values.

    The CPU path of the operator does both. The GPU's path runs on meta tensors, which have no values.
    """

    def see(self, func, args):
        # item() of a constant that the host made would be fine on a GPU; no test needs it
        assert not why_it_waits(func, args), why_it_waits(func, args)
