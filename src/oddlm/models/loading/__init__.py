"""Loading a network and its tokenizer from the files of a checkpoint.

No code from a checkpoint is ever executed.
"""
