"""Where the command kinst begins: what a shell asks while somebody types is answered without the
rest."""

from __future__ import annotations

import sys
from importlib import import_module

COMPLETE = "--complete"  # how the shells' functions ask; see kinst.cli.completion


def main() -> int:
    """The kinst command; its exit status."""
    words = sys.argv[1:]
    asked = words[:1] == [COMPLETE]
    module = import_module("kinst.cli.completion.answer" if asked else "kinst.cli.command")
    status: int = module.answer(words[1:]) if asked else module.main(words)
    return status


if __name__ == "__main__":
    sys.exit(main())
