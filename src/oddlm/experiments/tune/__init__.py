"""The best settings of a sampler, searched on problems that are never reported on."""
