"""Many runs out of one file, on one core or a cluster."""
