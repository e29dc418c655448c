"""Training with EAGC: SimGCD, LegoGCD, SPTNet and SelEx. `runs` has `train`, `resume` and `evaluate`."""
