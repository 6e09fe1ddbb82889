"""Networks that somebody else has loaded, as models of ours."""
