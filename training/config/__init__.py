"""The configuration of a run: settings, presets, and the command-line options made from them."""

from eagc_ops.training.config.schema import *  # noqa: F403
