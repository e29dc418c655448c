"""The self-test of the operator on a device, and the search for the fastest tile."""
