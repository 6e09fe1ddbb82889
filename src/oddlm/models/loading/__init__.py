"""From the files of a checkpoint to a network and its tokenizer.

Nothing in them is ever executed.
"""
