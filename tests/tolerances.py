"""How close is close: the one table."""

GOLDEN = 1e-9  # relative, float64, against the published implementation
SLOPE = 1e-5  # against finite differences
EXACT = 1e-12  # float64, the same algebra in another order
SINGLE = 2e-3  # float32 logits against the same in float64, relative to alpha
P_VALUE = 1e-4  # chi-square tests reject below this
