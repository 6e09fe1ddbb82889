"""Search for the best settings of a sampler, on problems that no result is reported on."""
