"""The pages for people and what they show: static files, step messages, recordings.

`assets` has the files of all pages, the report's too, and imports no torch. `serve` adds the
routes.
"""
