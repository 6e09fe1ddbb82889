"""How close is close: the one table."""

GOLDEN = 1e-9  # relative, float64, against the published implementation
# of alpha, float64, the closed form against autograd: rounding of 1e-16 over the floor of 1e-8 on a
# zero gradient
ORACLE = 3e-8
# the same where autograd itself cancels: nearly one-hot rows; duplicates under dpp (1 / jitter); no
ILL_CONDITIONED = 1e-5
# gradient but rounding, which a residual just above the tolerance of duplicates (1e-3) makes
# larger, over the floor of 1e-8
SLOPE = 1e-5  # against finite differences
EXACT = 1e-12  # float64, the same algebra in another order
SINGLE = 2e-3  # float32 logits against the same in float64, relative to alpha
# of alpha, the fused kernels (float32) against the closed form in float64, before rounding to the
# dtype
FUSED = 2e-6
P_VALUE = 1e-4  # chi-square tests reject below this
