"""`oddlm serve`: an OpenAI-compatible server for many different answers."""
