"""Adapters that turn networks loaded by other libraries into oddlm models."""
