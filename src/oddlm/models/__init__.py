"""Networks that predict tokens, and wrappers around them."""
