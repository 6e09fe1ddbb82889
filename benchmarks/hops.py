"""Count the calls and files of this package from `LM.generate` to the network and to a token.

    python benchmarks/hops.py

Prints the stack at the network and at the choice of a token, and the number of functions of the
package that one step of a run enters.
"""

import sys
from pathlib import Path
from types import FrameType
from typing import Any

import oddlm
from oddlm.models.transformer import Transformer

HERE = Path(oddlm.__file__).parent
lm = oddlm.load("mini")
stacks: dict[str, list[str]] = {}
entered: list[str] = []


def where(frame: FrameType) -> str | None:
    path = Path(frame.f_code.co_filename)
    return f"{path.relative_to(HERE)}:{frame.f_code.co_name}" if path.is_relative_to(HERE) else None


def stack() -> list[str]:
    found, frame = [], sys._getframe(2)
    while frame is not None:
        if name := where(frame):
            found.append(name)
        frame = frame.f_back  # type: ignore[assignment]
    return found[: next(i for i, name in enumerate(found) if name.endswith("lm.py:generate")) + 1][
        ::-1
    ]


def watch(frame: FrameType, event: str, argument: Any) -> None:
    if event == "call" and (name := where(frame)):
        entered.append(name)
        if name.endswith("transformer.py:predict"):
            stacks.setdefault("network", stack())
        if name.endswith(":_statistics"):
            stacks.setdefault("token", stack())


assert Transformer
options = {"n": 4, "length": 24, "temperature": 0.5, "fork": False, "progress": False}
sys.setprofile(watch)
lm.generate("3,4,5,6", steps=12, **options)
twelve = len(entered)
entered.clear()
lm.generate("3,4,5,6", steps=11, **options)
sys.setprofile(None)
files = {name.partition(":")[0] for found in stacks.values() for name in found}
for what, found in stacks.items():
    print(f"to the {what}: {len(found)} calls\n  " + "\n  ".join(found))
print(f"{len(files)} files: {', '.join(sorted(files))}")
print(
    f"a step enters {twelve - len(entered)} functions of the package, "
    f"{len(set(entered))} different ones in a run"
)
