"""The HTML pages and their data: static files, step messages, recordings.

`assets` holds the files of all pages, including the report's, and does not import torch. `serve`
adds the routes.
"""
