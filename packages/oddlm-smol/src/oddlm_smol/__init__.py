"""The files of the model smol: `oddlm` reads them, there is nothing to call here."""

from pathlib import Path

FOLDER = Path(__file__).parent  # of smol.json and difference.safetensors
