"""Fixtures that the tests of several rooms share."""

from layouts import pictures  # noqa: F401  (a fixture)
